"""Local training with torch: the `Learner` of one client."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 — torch's own convention
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call

from paraaegis.errors import ConfigError, DataError
from paraaegis.learn.augment import draw_crops, resample
from paraaegis.learn.devices import find_device
from paraaegis.learn.optimizer import make_optimizer, remember, restore, set_rate
from paraaegis.learn.private import PrivateGradient, private_round
from paraaegis.learn.vector import check_length, from_vector, save_state, spans_of, to_vector
from paraaegis.types import Arrays, Metrics, RecordPrivacy, Vector

__all__ = ["TorchLearner", "from_vector", "to_vector"]

TEST_BATCH = 200  # with 500 photographs of 128×128 pixels, ResNet-18 takes gigabytes and is no faster on a CPU
TEST_BATCH_CUDA = 500


_mps = threading.Lock()  # MPS must not be used from several threads at once


class TorchLearner:
    """A model, a shard of the data and an optimiser whose state is kept between rounds.

    Images are uint8 (n, height, width, channels) and are normalised on use by each channel's `mean` and `std`
    (pixels in 0..1). `momentum` is SGD's, or Adam's β1. `batches(number)` returns the generator of round
    `number`, the only source of randomness. `test` is the set that `evaluate` uses, if any. `rate(number)` is the
    learning rate of round `number`; without it, every round has `lr`.

    A last batch of a single sample is left out of an epoch: BatchNorm needs more than one value for a variance.

    With `record_privacy` it trains with DP-SGD instead; `batch` is then how many samples' gradients are in memory at a
    time.
    """

    def __init__(
        self,
        *,
        model: nn.Module,
        images: NDArray[np.uint8],
        labels: NDArray[np.int64],
        test: tuple[NDArray[np.uint8], NDArray[np.int64]] | None,
        epochs: int,
        batch: int,
        optimizer: str,
        lr: float,
        momentum: float,
        augment: bool,
        mean: tuple[float, ...],
        std: tuple[float, ...],
        batches: Callable[[int], np.random.Generator],
        device: str,
        server_lr: float = 1.0,
        rate: Callable[[int], float] | None = None,
        record_privacy: RecordPrivacy | None = None,
    ) -> None:
        if not len(images) or len(images) != len(labels):
            raise DataError(f"a client needs samples and a label for each, got {len(images)} and {len(labels)}")
        if epochs < 1 or batch < 1:
            raise ConfigError(f"train.epochs and train.batch must be at least 1, got {epochs} and {batch}")
        self._device = find_device(device)
        on_mps = self._device.type == "mps"
        self._alone: AbstractContextManager[Any] = _mps if on_mps else nullcontext()
        self._sum_type = torch.float32 if on_mps else torch.float64  # MPS has no float64
        self._model = model.to(self._device)
        # The images already have this layout; on a CPU it makes convolutions a third faster.
        self._model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._optimizer = make_optimizer(optimizer, self._model, lr, momentum, scheduled=rate is not None)
        self._rate = rate
        self._optimizer_name = optimizer
        self._initial = to_vector(self._model)
        self._server_lr = server_lr
        self._statistics = spans_of(self._model, "running_mean", "running_var")
        self._variances = spans_of(self._model, "running_var")
        self.has_batch_norm = bool(self._variances)
        self._images, self._labels = self._place(images, labels)
        self.samples = len(labels)
        self._test = None if test is None else self._place(*test)
        self._epochs, self._batch, self._augment, self._batches = epochs, batch, augment, batches
        self._scale = self._channels(1 / (255 * np.array(std)))
        self._shift = self._channels(-np.array(mean) / np.array(std))
        self.record_privacy = record_privacy
        self._gradient: PrivateGradient | None = None
        if record_privacy is not None:
            self._gradient = PrivateGradient(self._model, F.cross_entropy, record_privacy, self.samples, self._logits)
        self._prepare()

    def initial(self) -> Vector:
        """Return the initial model."""
        return self._initial.copy()

    def train(self, weights: Vector, number: int) -> tuple[Vector, Metrics]:
        """Run all epochs of round `number` from `weights`; return the new model and the mean `loss`."""
        with self._alone:
            self._write(weights)
            self._begin(number)
            metrics = self._train_privately(self._gradient, number) if self._gradient else self._train(number)
            self._optimizer.zero_grad()  # gradients would only hold memory until the next round
            return to_vector(self._model), metrics

    def _train(self, number: int) -> Metrics:
        total, seen = self._zero(), 0
        for rows, crops in self._draw(number):
            total += self._step(self._put(rows), self._put(crops)) * len(rows)
            seen += len(rows)
        return {"loss": self._value(total) / seen}

    def _train_privately(self, gradient: PrivateGradient, number: int) -> Metrics:
        rng = self._batches(number)

        def add(rows: NDArray[np.int64]) -> None:
            crops = self._crops(len(rows), rng)
            for start in range(0, len(rows), self._batch):
                piece = slice(start, start + self._batch)
                self._add(gradient, rows[piece], crops[piece])

        seen = private_round(gradient, self.samples, rng, add, partial(self._finish, gradient))
        return {"loss": self._value(gradient.losses) / seen} if seen else {}

    def apply(self, weights: Vector, delta: Vector) -> Vector:
        """Add `server_lr` times `delta` to `weights`, and clamp BatchNorm's variances at zero.

        BatchNorm's statistics are measured, not learnt, so they are added unscaled. Noise can push `running_var` below
        zero. Clamping at zero is enough, since BatchNorm adds its own ε before the square root; a higher floor would
        change models without noise.
        """
        check_length(weights, self._initial.size)
        check_length(delta, self._initial.size)
        step = delta
        if self._server_lr != 1:
            with np.errstate(over="ignore"):  # infinity is refused, with an explanation, after the next training
                step = np.multiply(delta, self._server_lr, dtype=np.float32)
            for span in self._statistics:
                step[span] = delta[span]
        model: Vector = np.add(weights, step, dtype=np.float32)
        for span in self._variances:
            np.maximum(model[span], 0, out=model[span])
        return model

    def evaluate(self, weights: Vector) -> Metrics:
        """Measure `accuracy` (0..1) and mean `loss` on the test set; empty if there is none."""
        if self._test is None:
            return {}
        with self._alone:
            self._write(weights)
            self._model.eval()
            right, loss = self._zero(), self._zero()
            batch = TEST_BATCH_CUDA if self._device.type == "cuda" else TEST_BATCH
            for images, labels in zip(*(torch.split(part, batch) for part in self._test), strict=True):
                with torch.inference_mode():
                    logits = self._logits(self._normal(images))
                    right += (logits.argmax(1) == labels).sum()
                    loss += F.cross_entropy(logits, labels, reduction="sum")
            count = len(self._test[1])
            return {"accuracy": right.item() / count, "loss": loss.item() / count}

    def state(self) -> Arrays:
        """Copy the optimiser's state and the model's integer buffers."""
        return remember(self._model, self._optimizer)

    def load(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Load a state that `state` returned; nothing is loaded if it does not fit."""
        restore(self._model, self._optimizer, self._optimizer_name, state)

    def save(self, path: Path, weights: Vector) -> None:
        """Write the model with these weights so that plain torch can load it."""
        save_state(path, self._model, weights)

    def _prepare(self) -> None:
        """Hook for subclasses, called at the end of construction."""

    def _begin(self, number: int) -> None:
        """Prepare the model and the optimiser for the steps of round `number`."""
        self._model.train()
        if self._rate is not None:
            set_rate(self._optimizer, self._rate(number))

    def _draw(self, number: int) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
        """Draw the sample indices of each batch of round `number`, and how each sample is cropped."""
        rng = self._batches(number)
        for rows in shuffled(self.samples, self._batch, self._epochs, rng):
            yield rows, self._crops(len(rows), rng)

    def _crops(self, count: int, rng: np.random.Generator) -> NDArray[np.float32]:
        return draw_crops(count, rng) if self._augment else np.empty((count, 0), np.float32)

    def _add(self, gradient: PrivateGradient, rows: NDArray[np.int64], crops: NDArray[np.float32]) -> None:
        """Add the gradients of at most `batch` samples to a step with DP-SGD."""
        where = self._put(rows)
        gradient.add(self._inputs(where, self._put(crops)), self._labels[where])

    def _finish(self, gradient: PrivateGradient, noise: Tensor | None) -> None:
        """Take a step with DP-SGD."""
        gradient.finish(noise)
        self._optimizer.step()

    def _inputs(self, rows: Tensor, crops: Tensor) -> Tensor:
        images = self._normal(self._images[rows])
        return resample(images, crops) if self._augment else images

    def _step(self, rows: Tensor, crops: Tensor) -> Tensor:
        """Train on the samples at `rows`; return their mean loss."""
        loss = F.cross_entropy(self._logits(self._inputs(rows, crops)), self._labels[rows])
        self._optimizer.zero_grad()
        torch.autograd.backward(loss)
        self._optimizer.step()
        return loss.detach()

    def _logits(self, images: Tensor, parameters: dict[str, Tensor] | None = None) -> Tensor:
        """The model's outputs, with other parameters than its own if they are given."""
        logits: Tensor = self._model(images) if parameters is None else functional_call(self._model, parameters, images)
        return logits

    def _write(self, weights: Vector) -> None:
        from_vector(self._model, weights)

    def _put(self, array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(array).to(self._device)

    def _zero(self) -> Tensor:
        return torch.zeros((), dtype=self._sum_type, device=self._device)

    def _value(self, total: Tensor) -> float:
        return float(total.item())

    def _normal(self, images: Tensor) -> Tensor:
        """Convert uint8 NHWC to normalised float32 NCHW."""
        return images.permute(0, 3, 1, 2).float().mul_(self._scale).add_(self._shift)

    def _channels(self, values: NDArray[np.float64]) -> Tensor:
        return self._put(values.astype(np.float32)).view(1, -1, 1, 1)

    def _place(self, images: NDArray[np.uint8], labels: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        # torch warns about read-only arrays, such as a memory-mapped data set, so those are copied.
        writable = np.require(images, np.uint8, ["C", "W"]), np.require(labels, np.int64, ["C", "W"])
        first, second = (self._put(array) for array in writable)
        return first, second


def shuffled(samples: int, batch: int, epochs: int, rng: np.random.Generator) -> Iterator[NDArray[np.int64]]:
    """Draw the sample indices of each batch, leaving out a last batch of a single sample."""
    used = samples - (batch > 1 and samples > batch and samples % batch == 1)
    for _ in range(epochs):
        order = rng.permutation(samples)[:used]
        yield from np.split(order, range(batch, used, batch))
