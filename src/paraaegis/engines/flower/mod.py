"""A mod for an existing Flower app: it answers a ParaAegis strategy, and the app's own function does the training.

Only frames of the protocol leave the node. What the training function returns stays on it; of what the evaluation
function returns, the number of examples and, if the node's configuration allows it, metrics pass.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, MutableMapping
from contextlib import AbstractContextManager
from functools import cached_property
from typing import Any, Protocol, TypeAlias, cast

import msgspec
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict

from paraaegis.engines.flower.arrays import check_form, to_arrays, to_vector
from paraaegis.engines.flower.client import Node, answer, reply_to
from paraaegis.engines.flower.frames import CONFIG, EVALUATE, MARK, OURS, TYPE, stage_of
from paraaegis.errors import LearnerError, ProtocolError
from paraaegis.types import Arrays, Metrics, Vector

__all__ = ["EXAMPLES", "AppTraining", "Context", "Protect", "RecordDict", "files_in", "numbers", "sent_config"]

FILES = f"{OURS}files"
EXAMPLES = "num-examples"  # the metric under which Flower's apps return how many examples they used
CallNext: TypeAlias = Callable[[Message, Context], Message]


class AppNode(Node, Protocol):
    """A node whose model is trained by a Flower app."""

    def allowed(self, metrics: Metrics, run: str, number: int) -> Metrics:
        """The metrics of an evaluation that may be sent, recorded as released."""


OpenNode: TypeAlias = Callable[[RecordDict, Context, "AppTraining"], AbstractContextManager[AppNode]]


class AppTraining:
    """The model in a message, and the app's own training function."""

    def __init__(
        self, content: RecordDict, call: Callable[[RecordDict], RecordDict], settings: Mapping[str, Any]
    ) -> None:
        self._content, self._call, self._settings = own_part(content), call, settings
        self.introduces = stage_of(content) == "who"  # its model is the first one

    @cached_property
    def told(self) -> str:
        """A digest of all that the server can tell the app's function: the records and the --run-config.

        Nodes of one sum agree on it. Otherwise a server could give all but one a learning rate of 0.
        """
        records = [(name, type(record).__name__, _told(record)) for name, record in self._content.items()]
        return hashlib.sha256(msgspec.msgpack.encode((records, sorted(self._settings.items())))).hexdigest()

    @property
    def _model(self) -> ArrayRecord | None:
        return next(iter(self._content.array_records.values()), None)

    @property
    def model(self) -> Vector | None:
        """The server's model, in messages that carry it."""
        return None if self._model is None else to_vector(self._model)

    def arrays(self, weights: Vector) -> Arrays:
        """A model's arrays by name, in a message that carries a model."""
        if self._model is None:
            raise ProtocolError("the message has no model to name the arrays")
        return {name: array.numpy() for name, array in to_arrays(weights, self._model).items()}

    def train(self, weights: Vector) -> tuple[Vector, int, Metrics]:
        """The model after training from these weights, the number of examples, and the app's metrics."""
        model = self._model
        if model is None:
            raise ProtocolError("asked to train by a message without a model")
        (name,) = self._content.array_records
        sent = RecordDict({**self._content, name: to_arrays(weights, model)})
        content = self._call(sent)
        arrays = content.array_records
        if strange := sorted(set(content) - set(arrays) - set(content.metric_records)):
            raise LearnerError(f"the app's training function may return arrays and metrics, got {', '.join(strange)}")
        if len(arrays) != 1:
            raise LearnerError(
                f"the app's training function must return one ArrayRecord, got {sorted(arrays) or 'none'}"
            )
        (trained,) = arrays.values()
        check_form(trained, model, "what the app's training function returns")
        metrics = numbers(*content.metric_records.values())
        return to_vector(trained, model), _examples(metrics), metrics


class Protect:
    """A mod that answers training and evaluation messages; `open_node` opens its node for one message.

    A class, since a simulation would copy a nested function with all that its module has loaded for every message.
    """

    def __init__(self, open_node: OpenNode) -> None:
        self._open_node = open_node

    def __call__(self, message: Message, context: Context, call_next: CallNext) -> Message:
        """Answer one message."""
        content, kind = message.content, message.metadata.message_type

        def call(own: RecordDict) -> RecordDict:
            message.content = own
            reply = call_next(message, context)
            if reply.has_error():
                raise LearnerError(f"the app's function failed: {reply.error.reason}")
            return reply.content

        def work() -> RecordDict:
            if kind not in (TYPE, EVALUATE):
                raise ProtocolError(f"this node answers {TYPE!r} and {EVALUATE!r} messages only, got {kind!r}")
            with self._open_node(content, context, AppTraining(content, call, context.run_config)) as node:
                return answer(node, content) if kind == TYPE else _evaluated(node, content, call)

        return reply_to(message, work)


def _evaluated(node: AppNode, content: RecordDict, call: Callable[[RecordDict], RecordDict]) -> RecordDict:
    if stage_of(content) != EVALUATE:
        raise ProtocolError("this node evaluates models of a ParaAegis server only")
    mark = content.config_records[MARK]
    returned = call(own_part(content))
    if strange := sorted(set(returned) - set(returned.metric_records)):
        raise LearnerError(f"the app's evaluation function may return metrics only, got {', '.join(strange)}")
    metrics = numbers(*returned.metric_records.values())
    examples = _examples(metrics)
    passing = node.allowed(metrics, str(mark["run"]), int(mark["round"]))
    return RecordDict({"metrics": MetricRecord({**passing, EXAMPLES: examples})})


def sent_config(content: RecordDict) -> str:
    """The configuration that the server sends with the first message; only nodes of a simulation use it."""
    return str(content.config_records[CONFIG]["toml"]) if CONFIG in content.config_records else ""


def files_in(state: RecordDict) -> MutableMapping[str, bytes]:
    """The files that a simulated node keeps between messages, by path."""
    return cast("MutableMapping[str, bytes]", state.config_records.setdefault(FILES, ConfigRecord()))


def own_part(content: RecordDict) -> RecordDict:
    """A message's content without what ParaAegis added to it."""
    return RecordDict({name: record for name, record in content.items() if not name.startswith(OURS)})


def _told(record: ArrayRecord | ConfigRecord | MetricRecord) -> list[Any]:
    """What a record says, to be hashed. The order of arrays counts, since apps may use it."""
    if isinstance(record, ArrayRecord):
        return [
            [name, array.dtype, list(array.shape), array.stype, hashlib.sha256(array.data).digest()]
            for name, array in record.items()
        ]
    return sorted(record.items())


def numbers(*records: MetricRecord) -> Metrics:
    """All metrics that are single numbers; lists stay where they are."""
    pairs = (pair for record in records for pair in record.items())
    return {name: float(value) for name, value in pairs if not isinstance(value, list)}


def _examples(metrics: Metrics) -> int:
    """Take the number of examples out of an app's metrics."""
    examples = metrics.pop(EXAMPLES, None)
    if examples is None or examples < 1 or examples != int(examples):
        got = "none" if examples is None else f"{examples:g}"
        raise LearnerError(f"the app's function must return {EXAMPLES!r}, a whole number above 0, got {got}")
    return int(examples)
