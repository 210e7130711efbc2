"""A strategy of Flower that sees only the mean of what clients trained, and the model that it makes of it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAdagrad, FedAdam, FedAvg, FedAvgM, FedProx, FedYogi, Result, Strategy
from flwr.serverapp.strategy.strategy_utils import aggregate_metricrecords

from paraaegis.engines.flower.arrays import to_arrays, to_vector
from paraaegis.engines.flower.frames import CONFIG, EVALUATE, MARK, error_in
from paraaegis.engines.flower.mod import EXAMPLES, numbers
from paraaegis.engines.flower.server import FlowerTransport
from paraaegis.errors import ConfigError, RunError
from paraaegis.protocol.messages import Begin, Finish, unpack
from paraaegis.protocol.round_server import Exchange, Reply
from paraaegis.types import Arrays, Metrics, Vector

__all__ = [
    "ArrayRecord",
    "Asked",
    "ConfigRecord",
    "Driven",
    "Grid",
    "MetricRecord",
    "ModelTransport",
    "Result",
    "ServedModel",
    "check_inner",
    "is_simulation",
]

ONLY_MEAN = (FedAvg, FedAvgM, FedAdam, FedYogi, FedAdagrad, FedProx)
KEPT = ("m_t", "v_t", "momentum_vector")  # what they remember from round to round, in addition to the model
_log = logging.getLogger(__name__)


def check_inner(inner: FedAvg, clients: int) -> None:
    """Refuse a strategy that needs more than the mean, or that samples or weights clients in its own way."""
    name = type(inner).__name__
    flowers = next(each for each in type(inner).__mro__ if each.__module__.startswith("flwr."))
    if flowers not in ONLY_MEAN:
        raise ConfigError(
            f"{name} needs every client's own update, which nobody sees here; strategies that need only the mean: "
            + ", ".join(each.__name__ for each in ONLY_MEAN)
        )
    if inner.fraction_train != 1.0:
        raise ConfigError(
            f"{name}(fraction_train={inner.fraction_train}): clients are drawn by federation.fraction in the "
            "configuration, which all nodes check; leave fraction_train at 1.0"
        )
    if inner.weighted_by_key != EXAMPLES:
        raise ConfigError(
            f"{name}(weighted_by_key={inner.weighted_by_key!r}): clients are weighted by {EXAMPLES!r} or, with "
            'federation.weights = "uniform", all alike'
        )
    if inner.train_metrics_aggr_fn is not aggregate_metricrecords:
        raise ConfigError(
            f"{name}(train_metrics_aggr_fn=...): metrics of training never leave a node; leave it out, and read "
            "metrics.jsonl in the nodes' folders"
        )
    most = max(inner.min_train_nodes, inner.min_available_nodes, inner.min_evaluate_nodes)
    if most > clients:
        raise ConfigError(f"{name} waits for {most} nodes, but federation.clients is {clients}")


def is_simulation(grid: Grid) -> bool:
    """Whether a grid is that of Flower's simulation, whose nodes are in this process."""
    return type(grid).__name__ == "InMemoryGrid"


class Asked(NamedTuple):
    """What `start` was called with: the first model, and what goes to the app's functions."""

    arrays: ArrayRecord
    train: ConfigRecord
    evaluate: ConfigRecord
    evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None


class ServedModel:
    """The model from round to round: an inner strategy makes it from the mean of the clients' updates."""

    def __init__(self, inner: FedAvg, asked: Asked) -> None:
        self._inner, self._asked = inner, asked
        self.number, self.arrays = 0, asked.arrays
        self.result = Result(arrays=asked.arrays)
        self._instructions: dict[int, Message] = {}
        self.introduction = self.for_training(1)  # what every node gets first, whenever it connects

    def for_training(self, number: int) -> RecordDict:
        """The records that the app's training function gets in this round: the model, and the strategy's settings."""
        if number not in self._instructions:
            nodes = _Nodes(range(1, 1 + max(self._inner.min_train_nodes, self._inner.min_available_nodes, 1)))
            config = ConfigRecord(dict(self._asked.train))
            (first, *_) = self._inner.configure_train(number, self.arrays, config, nodes)
            self._instructions = {number: first}
        return self._instructions[number].content

    def last(self) -> RecordDict:
        """The records with which a run ends: the model."""
        return RecordDict({self._inner.arrayrecord_key: self.arrays})

    def take(self, number: int, mean: Vector) -> None:
        """Hand the mean update of a round to the inner strategy as the only client's reply."""
        self.for_training(number)
        before, key = self.arrays, self._inner.arrayrecord_key
        trained = to_arrays(to_vector(before) + mean, before)
        content = RecordDict({key: trained, "metrics": MetricRecord({EXAMPLES: 1})})
        arrays, metrics = self._inner.aggregate_train(number, [Message(content, reply_to=self._instructions[number])])
        if arrays is None:
            raise RunError(f"{type(self._inner).__name__} made no model of the mean update of round {number}")
        self.number, self.arrays = number, to_arrays(to_vector(arrays, before), before)
        self.result.arrays = self.arrays
        if metrics:
            self.result.train_metrics_clientapp[number] = metrics

    def evaluate(self, number: int, nodes: ModelTransport) -> Metrics:
        """Evaluate the model of a round: on the nodes, as the inner strategy asks for it, and by `evaluate_fn`."""
        found: Metrics = {}
        config, connected = ConfigRecord(dict(self._asked.evaluate)), nodes.connected()
        least = max(self._inner.min_available_nodes, self._inner.min_evaluate_nodes)  # it would wait for them for ever
        if self._inner.fraction_evaluate and len(connected) >= least:
            asked = list(self._inner.configure_evaluate(number, self.arrays, config, _Nodes(connected)))
            replies = _alike(nodes.evaluate(asked, number))
            metrics = self._inner.aggregate_evaluate(number, replies) if replies else None
            if metrics:
                self.result.evaluate_metrics_clientapp[number] = metrics
                found |= numbers(metrics)
        return found | self.evaluate_here(number)

    def evaluate_here(self, number: int) -> Metrics:
        """Evaluate the model by `evaluate_fn`."""
        metrics = self._asked.evaluate_fn(number, self.arrays) if self._asked.evaluate_fn else None
        if metrics is None:
            return {}
        self.result.evaluate_metrics_serverapp[number] = metrics
        return numbers(metrics)

    def state(self) -> Arrays:
        """What a run that is resumed needs: the model, and what the inner strategy remembers."""
        state = {"model": to_vector(self.arrays)}
        for name in KEPT:
            kept = getattr(self._inner, name, None) or {}
            pairs = kept.items() if isinstance(kept, dict) else ((f"{i:06d}", array) for i, array in enumerate(kept))
            state |= {f"{name}/{key}": np.asarray(array) for key, array in pairs}
        return state

    def load(self, number: int, state: Mapping[str, Any]) -> None:
        """Continue after this round with what `state` returned."""
        self.number, self.arrays = number, to_arrays(state["model"], self._asked.arrays)
        self.result.arrays = self.arrays
        self._instructions = {}
        if hasattr(self._inner, "current_arrays"):
            self._inner.current_arrays = None  # it takes the next round's
        for name in KEPT:
            kept = {key.partition("/")[2]: array for key, array in state.items() if key.startswith(f"{name}/")}
            if kept:
                setattr(self._inner, name, list(kept.values()) if name == "momentum_vector" else kept)


class _Nodes:
    """A grid that knows its nodes and can do nothing else, for strategies that ask which nodes there are."""

    def __init__(self, nodes: Iterable[int]) -> None:
        self._nodes = list(nodes)

    def get_node_ids(self) -> Iterable[int]:
        """The nodes."""
        return self._nodes


def _alike(replies: Sequence[Message]) -> list[Message]:
    """Replies with the metrics that all of them have, since strategies end the run if they differ."""
    records = [next(iter(reply.content.metric_records.values())) for reply in replies]
    common = set.intersection(*(set(record) for record in records)) if records else set()
    for record in records:
        for name in set(record) - common:
            del record[name]
    return list(replies) if common - {EXAMPLES} else []


def _odd(content: RecordDict) -> str:
    """Why a node's evaluation cannot be aggregated, which would end the run; empty if it can."""
    records = list(content.metric_records.values())
    examples = records[0].get(EXAMPLES) if len(records) == 1 else None
    return "" if isinstance(examples, int) and examples > 0 else f"its answer has no {EXAMPLES!r} of at least 1"


class ModelTransport(FlowerTransport):
    """Adds the server's model to the messages in which a client needs it, and carries evaluations."""

    run = ""  # the run's name, once it is known

    def __init__(self, grid: Grid, deadline: float, quorum: int, model: ServedModel, config: str) -> None:
        super().__init__(grid, deadline, quorum, _log.info)
        self._model, self._introduction = model, {**model.introduction, CONFIG: ConfigRecord({"toml": config})}
        self._added: Mapping[str, Any] = {}

    def _message(self, node: int, stage: str, content: RecordDict) -> Message:
        added = self._introduction if stage == "who" else self._added
        return super()._message(node, stage, RecordDict({**content, **added}))

    def carry(self, exchange: Exchange) -> Iterator[Reply]:
        """See FlowerTransport. A round begins with the model to train, and a run ends with the last one."""
        message = unpack(next(iter(exchange.messages.values()))) if exchange.messages else None
        match message:
            case Begin():
                self._added = self._model.for_training(self._model.number + 1)
            case Finish():
                self._added = self._model.last()
            case _:
                self._added = {}
        yield from super().carry(exchange)

    def connected(self) -> list[int]:
        """The nodes that are connected."""
        return sorted(self._present().values())

    def evaluate(self, messages: Sequence[Message], number: int) -> list[Message]:
        """Send evaluation messages of a round; the replies. A node that fails or is late is left out."""
        mark = ConfigRecord({"stage": EVALUATE, "run": self.run, "round": number})
        asked = {
            str(message.metadata.dst_node_id): Message(
                RecordDict({**message.content, MARK: mark}), message.metadata.dst_node_id, EVALUATE, ttl=self._deadline
            )
            for message in messages
        }
        replies = []
        for node, content, error in self._exchange(asked.items(), time.monotonic() + self._deadline):
            reason = error if content is None else error_in(content) or _odd(content)
            if reason:
                _log.warning("%s did not evaluate round %d: %s", self._names.get(int(node), node), number, reason)
            else:
                replies.append(Message(content, reply_to=asked[node]))
        return replies


class Driven(Strategy):  # type: ignore[misc]
    """A strategy whose rounds are those of our protocol: `start` is its own, and Flower's steps are not used."""

    def __init__(self, inner: FedAvg) -> None:
        self.inner = inner

    def summary(self) -> None:
        """Log the inner strategy's settings."""
        self.inner.summary()

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Any:
        """Not used: it would train in the clear."""
        raise self._misused(server_round, arrays, config, grid)

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        """Not used: no reply has an update in the clear."""
        raise self._misused(server_round, replies)

    def configure_evaluate(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Any:
        """Not used: see ServedModel.evaluate."""
        raise self._misused(server_round, arrays, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> Any:
        """Not used: see ServedModel.evaluate."""
        raise self._misused(server_round, replies)

    def _misused(self, *_arguments: object) -> ConfigError:
        return ConfigError(f"{type(self).__name__} cannot be wrapped by another strategy; call its own `start`")
