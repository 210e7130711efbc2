"""Local training on CUDA: each step is one captured graph, and each client has its own stream.

A step of ResNet-18 is 365 small kernels. Launched one by one, they leave the GPU waiting for Python; replayed
as a graph, with several clients' graphs running concurrently, they keep it busy.

With DP-SGD a step has any number of samples. One graph adds the gradients of `batch` samples, the last of them padding
that is not counted, and is replayed until all are added; another one adds the noise and updates the model.
"""

from __future__ import annotations

import gc
import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paraaegis.learn.private import PrivateGradient
from paraaegis.learn.train import TorchLearner, shuffled
from paraaegis.learn.vector import check_length, floats
from paraaegis.types import Arrays, Metrics, Vector

WARM_UP = 3  # steps before a capture: in the first ones libraries choose kernels and allocate memory
AHEAD = 16  # steps of a client queued for the GPU: enough to keep it busy

_capturing = threading.Lock()  # torch captures one graph at a time


@dataclass(frozen=True, eq=False)
class Step:
    """Work on tensors that stay where they are, and its graph if it was captured.

    Nothing in it may wait for the GPU.
    """

    work: Callable[..., None]
    inputs: tuple[Tensor, ...]
    graph: torch.cuda.CUDAGraph | None = None

    @property
    def size(self) -> int:
        """Samples in a batch."""
        return len(self.inputs[0]) if self.inputs else 0


Steps: TypeAlias = dict[int | str, Step]  # by batch size, or "add" and "update" with DP-SGD


class CudaLearner(TorchLearner):
    """A `TorchLearner` for CUDA, in bfloat16 where that is safe; the weights themselves stay float32.

    Learners train concurrently if each is called from its own thread. Each captures its graphs when it is built.
    Build all of them before any trains: torch hands out only 32 streams before it reuses them.

    Without CUDA the same steps run one by one in float32, for tests.
    """

    precision: ClassVar[torch.dtype] = torch.bfloat16
    turns: AbstractContextManager[Any] = nullcontext()  # held while it trains

    def _prepare(self) -> None:
        # Otherwise pinned memory and the end of a capture would use the first GPU as well.
        with torch.cuda.device(self._device) if self._device.type == "cuda" else nullcontext():
            self._allocate()

    def _allocate(self) -> None:
        cuda = self._device.type == "cuda"
        self._stream = torch.cuda.Stream(self._device) if cuda else None  # type: ignore[no-untyped-call]
        marks = [torch.cuda.Event(blocking=True) for _ in range(AHEAD if cuda else 0)]  # type: ignore[no-untyped-call]
        self._marks = itertools.cycle(marks)
        self._dtype = self.precision if cuda else torch.float32
        self._flat = torch.empty(self._initial.size, device=self._device)
        self._host = torch.empty(self._initial.size, pin_memory=cuda)
        self._tensors = list(floats(self._model).values())
        parts = torch.split(self._flat, [tensor.numel() for tensor in self._tensors])
        self._parts = [part.view(tensor.shape) for part, tensor in zip(parts, self._tensors, strict=True)]
        self._loss = self._zero()
        steps = self._private_steps(self._gradient) if self._gradient else self._plain_steps()
        if cuda:
            torch.cuda.synchronize(self._device)  # everything above ran on another stream
            steps = self._capture(steps)
        self._steps = steps

    def _plain_steps(self) -> Steps:
        sizes = {len(rows) for rows in shuffled(self.samples, self._batch, 1, np.random.default_rng(0))}
        return {size: Step(self._learn, self._blank(size)) for size in sorted(sizes, reverse=True)}

    def _private_steps(self, gradient: PrivateGradient) -> Steps:
        counted = torch.ones(self._batch, device=self._device)
        noise = gradient.blank_noise()
        return {
            "add": Step(partial(self._add_counted, gradient), (*self._blank(self._batch), counted)),
            "update": Step(partial(self._update, gradient), () if noise is None else (noise,)),
        }

    def train(self, weights: Vector, number: int) -> tuple[Vector, Metrics]:
        """Run all epochs of round `number` from `weights`; return the new model and the mean `loss`."""
        with self.turns, self._own_stream():
            self._write(weights)
            self._begin(number)
            metrics = self._train_privately(self._gradient, number) if self._gradient else self._train(number)
            return self._read(), metrics

    def _train(self, number: int) -> Metrics:
        drawn = list(self._draw(number))
        rows, crops = (np.concatenate(part) for part in zip(*drawn, strict=True))
        sizes = [len(part) for part, _ in drawn]
        self._loss.zero_()
        for batch in zip(*(torch.split(self._send(part), sizes) for part in (rows, crops)), strict=True):
            self._replay(self._steps[len(batch[0])], *batch)
        return {"loss": self._value(self._loss) / len(rows)}

    def _add(self, _: PrivateGradient, rows: NDArray[np.int64], crops: NDArray[np.float32]) -> None:
        counted = np.arange(self._batch) < len(rows)
        self._replay(self._steps["add"], self._send(rows), self._send(crops), self._send(counted))

    def _finish(self, _: PrivateGradient, noise: Tensor | None) -> None:
        self._replay(self._steps["update"], *(() if noise is None else (self._send(noise.numpy()),)))

    def evaluate(self, weights: Vector) -> Metrics:
        """Measure `accuracy` (0..1) and mean `loss` on the test set; empty if there is none."""
        with self._own_stream():
            return super().evaluate(weights)

    def state(self) -> Arrays:
        """Copy the optimiser's state and the model's integer buffers."""
        with self._own_stream():
            return super().state()

    def load(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Load a state that `state` returned; nothing is loaded if it does not fit."""
        with self._own_stream():
            super().load(state)

    def _own_stream(self) -> AbstractContextManager[Any]:
        return torch.cuda.stream(self._stream)

    def _blank(self, size: int) -> tuple[Tensor, Tensor]:
        """Allocate the rows and crops of a batch. All-zero crops show each image's centre."""
        rows = torch.arange(size, device=self._device) % self.samples
        return rows, torch.zeros((size, 2, 3) if self._augment else (size, 0), device=self._device)

    def _replay(self, step: Step, *values: Tensor) -> None:
        """Do a step's work. A value that is shorter than the input it replaces leaves the rest as it is."""
        for tensor, value in zip(step.inputs, values, strict=True):
            tensor[: len(value)].copy_(value)
        if step.graph is None:
            step.work(*step.inputs)
        else:
            mark = next(self._marks)
            mark.synchronize()  # of the step AHEAD steps ago: this sleeps; a full launch queue would keep a core busy
            step.graph.replay()
            mark.record(self._stream)

    def _learn(self, rows: Tensor, crops: Tensor) -> None:
        """Train on one batch."""
        self._loss += self._step(rows, crops) * len(rows)

    def _add_counted(self, gradient: PrivateGradient, rows: Tensor, crops: Tensor, counted: Tensor) -> None:
        gradient.add(self._inputs(rows, crops), self._labels[rows], counted)

    def _update(self, gradient: PrivateGradient, noise: Tensor | None = None) -> None:
        self._optimizer.zero_grad()  # so that a graph has gradients of its own
        super()._finish(gradient, noise)

    def _capture(self, blanks: Steps) -> Steps:
        """Capture each step as a graph, then restore the learner's state."""
        pool = torch.cuda.graph_pool_handle()  # shared by all of them, since they never run at the same time
        with _capturing, _no_collection(), self._own_stream():
            before = super().state()
            steps = {key: replace(blank, graph=self._graph(blank, pool)) for key, blank in blanks.items()}
            self._optimizer.zero_grad()
            self._write(self._initial)
            super().load(before)
            torch.cuda.synchronize(self._device)
        return steps

    def _graph(self, step: Step, pool: Any) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        with _cudnn_benchmark(step.size == self._batch):  # takes seconds, so not for a smaller last batch
            self._model.train()
            self._allow_capture(False)  # otherwise torch warns about the steps that are not captured
            for _ in range(WARM_UP):
                step.work(*step.inputs)
            self._allow_capture(True)
            with torch.cuda.graph(graph, pool, self._stream, capture_error_mode="thread_local"):
                step.work(*step.inputs)
        return graph

    def _allow_capture(self, allowed: bool) -> None:
        for group in self._optimizer.param_groups:
            group["capturable"] = allowed  # Adam requires it; the fused kernel computes the same either way

    def _logits(self, images: Tensor, parameters: dict[str, Tensor] | None = None) -> Tensor:
        if parameters is None:  # not under vmap, where an image has no batch dimension that could be laid out
            images = images.to(memory_format=torch.channels_last)
        images = images.to(self._dtype)
        with torch.autocast(self._device.type, self._dtype, self._dtype != torch.float32, cache_enabled=False):
            return super()._logits(images, parameters).float()

    @torch.no_grad()
    def _write(self, weights: Vector) -> None:
        check_length(weights, self._initial.size)
        np.copyto(self._host.numpy(), weights)
        self._flat.copy_(self._host, non_blocking=True)
        torch._foreach_copy_(self._tensors, self._parts)

    @torch.no_grad()
    def _read(self) -> Vector:
        """Wait for the stream and copy the model."""
        torch._foreach_copy_(self._parts, self._tensors)
        self._host.copy_(self._flat, non_blocking=True)
        self._wait()
        vector: Vector = self._host.numpy().copy()
        return vector

    def _value(self, total: Tensor) -> float:
        self._wait()
        return super()._value(total)

    def _wait(self) -> None:
        """Sleep until the stream's work is done; reading a tensor would keep a core busy."""
        if self._stream is not None:
            mark = next(self._marks)
            mark.record(self._stream)
            mark.synchronize()

    def _send(self, array: NDArray[Any]) -> Tensor:
        """Copy to the GPU without waiting."""
        tensor = torch.from_numpy(array)
        if self._stream is not None:
            tensor = tensor.pin_memory()
        return tensor.to(self._device, non_blocking=True)


def take_turns(learners: Iterable[CudaLearner], most: int) -> None:
    """Let at most `most` learners train at a time."""
    turns = threading.BoundedSemaphore(most)
    for learner in learners:
        learner.turns = turns


@contextmanager
def _no_collection() -> Iterator[None]:
    """Keep the garbage collector from freeing an earlier learner's graphs, which would invalidate a capture."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextmanager
def _cudnn_benchmark(enabled: bool) -> Iterator[None]:
    """Let cuDNN time its algorithms on each new shape and keep the fastest, instead of guessing."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = enabled
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before
