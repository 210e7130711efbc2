"""A grid of Flower in this process: every message is answered at once by a real ClientApp, and recorded."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from types import SimpleNamespace

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.supercore.task_identity import TaskIdentity

SHAPES = {"layer.weight": (4, 5), "norm.running_var": (3,), "layer.bias": (5,)}


def first_model() -> ArrayRecord:
    arrays = {name: np.full(shape, 0.5, dtype=np.float32) for name, shape in SHAPES.items()}
    return ArrayRecord({**{name: Array(array) for name, array in arrays.items()}, "batches": Array(np.array(7))})


def update(part: int, number: int, name: str) -> np.ndarray:
    """What a node's training adds to an array in a round."""
    drawn = np.random.default_rng([part, number, len(name)]).normal(size=SHAPES[name]).astype(np.float32)
    return np.abs(drawn) if name.endswith("running_var") else drawn


def trained(arrays: ArrayRecord, part: int, number: int) -> ArrayRecord:
    return ArrayRecord({
        name: Array(np.asarray(array.numpy() + (update(part, number, name) if name in SHAPES else 1)))
        for name, array in arrays.items()
    })  # fmt: skip


def fit(message: Message, context: Context) -> RecordDict:
    part, number = context.node_config["partition-id"], message.content["config"]["server-round"]
    metrics = MetricRecord({"train_loss": 0.25 + part, "num-examples": 10 * (part + 1)})
    return RecordDict({"arrays": trained(message.content["arrays"], part, number), "metrics": metrics})


def test(message: Message, context: Context) -> RecordDict:
    size = sum(float(np.abs(array.numpy()).sum()) for array in message.content["arrays"].values())
    return RecordDict({"metrics": MetricRecord({"size": size, "num-examples": 10})})


class Grid:
    """Nodes by number from 1, each with its own --node-config and state; `away` are not connected."""

    def __init__(self, mods: list, node_configs: list[dict], fit: Callable = fit, test: Callable = test) -> None:
        self.run = SimpleNamespace(run_id=7)
        self.app = ClientApp(mods=mods)
        self.contexts = {
            number: Context(7, number, {"partition-id": number - 1, **config}, RecordDict(), {})
            for number, config in enumerate(node_configs, 1)
        }
        self.away: set[int] = set()
        self.trained: list[tuple[int, int]] = []  # node and round of each call of the app's training function
        self.wire: list[tuple[int, Message, Message]] = []  # node, message, reply
        self._waiting: dict[str, Message] = {}
        self._pushed = 0
        TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 7, 1, 1

        @self.app.train()
        def train(message: Message, context: Context) -> Message:
            self.trained.append((context.node_id, message.content["config"]["server-round"]))
            return Message(fit(message, context), reply_to=message)

        @self.app.evaluate()
        def evaluate(message: Message, context: Context) -> Message:
            return Message(test(message, context), reply_to=message)

        @self.app.query()
        def query(message: Message, context: Context) -> Message:
            return Message(RecordDict({"arrays": first_model()}), reply_to=message)

    def get_node_ids(self) -> list[int]:
        return [number for number in self.contexts if number not in self.away]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        found = []
        for message in messages:
            self._pushed += 1
            found.append(f"message {self._pushed}")
            self._waiting[found[-1]] = message
        return found

    def pull_messages(self, identities: Iterable[str]) -> list[Message]:
        """The replies, made now: so no test depends on how long that takes."""
        return [self._answer(self._waiting.pop(identity)) for identity in identities if identity in self._waiting]

    def _answer(self, message: Message) -> Message:
        node = message.metadata.dst_node_id
        received = copy.copy(message)
        received.content = copy.deepcopy(message.content)  # what an app changes stays on its node
        sent = SimpleNamespace(content=RecordDict(dict(message.content)), metadata=message.metadata)
        reply = self.app(received, self.contexts[node])
        self.wire.append((node, sent, reply))
        return reply

    def send_and_receive(self, messages: Iterable[Message], timeout: float = 0) -> list[Message]:
        return self.pull_messages(self.push_messages(list(messages)))
