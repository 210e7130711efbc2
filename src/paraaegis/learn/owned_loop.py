"""The library's training loop over a user's own model and data."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.data import DataLoader, Dataset, TensorDataset

from paraaegis.errors import ConfigError, DataError, UpdateError
from paraaegis.learn.optimizer import set_rate
from paraaegis.learn.private import Loss, PrivateGradient, private_round
from paraaegis.plural import plural
from paraaegis.types import Draw, Metrics, RecordPrivacy

Data: TypeAlias = "DataLoader[Any] | Dataset[Any] | tuple[Tensor, Tensor]"
Rate: TypeAlias = float | Callable[[int], float]  # the same in every round, or of the round
MakeOptimizer: TypeAlias = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


class OwnedLoop:
    """The library's loop over the user's data."""

    def __init__(
        self,
        model: nn.Module,
        loader: DataLoader[Any],
        shuffling: torch.Generator | None,
        loss: Loss,
        optimizer: MakeOptimizer | None,
        epochs: int | None,
        lr: Rate | None,
    ) -> None:
        if epochs is not None and epochs < 1:
            raise ConfigError(f"epochs must be at least 1, got {epochs}")
        self._loader, self._shuffling, self._loss, self._epochs = loader, shuffling, loss, epochs
        self._private: tuple[PrivateGradient, Draw] | None = None
        self.samples = _length(loader.dataset)
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        if not parameters:
            raise ConfigError("the model has no parameters to train")
        self.optimizer, self._lr = (optimizer or _sgd)(parameters), lr

    def run(self, model: nn.Module, number: int) -> Metrics:
        """All steps of a round; the mean loss."""
        if self._lr is not None:
            set_rate(self.optimizer, self._lr(number) if callable(self._lr) else self._lr)
        if self._private is not None:
            return self._run_privately(*self._private, model, number)
        device, total, seen = next(model.parameters()).device, 0.0, 0
        if self._shuffling is not None:
            self._shuffling.manual_seed(number)  # so that a resumed run sees the same batches
        for _ in range(self._epochs or 1):
            for inputs, targets in self._loader:
                value = self._loss(model(inputs.to(device)), targets.to(device))
                if not torch.isfinite(value):
                    raise UpdateError(
                        f"the loss became {value.item()} in round {number}; lower the learning rate, or look for NaN "
                        "in the data"
                    )
                self.optimizer.zero_grad()
                value.backward()  # type: ignore[no-untyped-call]
                self.optimizer.step()
                total, seen = total + value.item() * len(targets), seen + len(targets)
        return {"loss": total / max(1, seen)}

    def protect_records(self, model: nn.Module, privacy: RecordPrivacy | None, draw: Draw) -> None:
        """See TorchAttachment."""
        if privacy is None:
            self._private = None
            return
        if self._shuffling is None:
            raise ConfigError(
                'privacy.unit = "record" draws samples itself; pass data=loader.dataset to torch_learner instead of a '
                "loader"
            )
        if self._epochs is not None:
            raise ConfigError(
                'with privacy.unit = "record" the configuration says how much a round trains (train.epochs, '
                f"privacy.sample_rate), got epochs={self._epochs} in torch_learner; leave it out there"
            )

        def outputs(inputs: Tensor, parameters: dict[str, Tensor]) -> Tensor:
            computed: Tensor = functional_call(model, parameters, inputs)
            return computed

        self.optimizer.state.clear()  # of training without DP-SGD, if there was any
        self._private = PrivateGradient(model, self._loss, privacy, self.samples, outputs), draw

    def _run_privately(self, gradient: PrivateGradient, draw: Draw, model: nn.Module, number: int) -> Metrics:
        """The steps of a round with DP-SGD."""
        device, size, dataset = next(model.parameters()).device, self._loader.batch_size or 1, self._loader.dataset

        def add(rows: NDArray[np.int64]) -> None:
            for start in range(0, len(rows), size):
                piece = rows[start : start + size].tolist()
                inputs, targets = self._loader.collate_fn([dataset[row] for row in piece])
                gradient.add(inputs.to(device), targets.to(device))

        def finish(noise: Tensor | None) -> None:
            gradient.finish(noise)
            self.optimizer.step()

        seen = private_round(gradient, self.samples, draw(number), add, finish)
        self.optimizer.zero_grad()
        return {"loss": gradient.losses.item() / seen} if seen else {}


def _sgd(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)


def make_loader(data: Data, batch: int) -> tuple[DataLoader[Any], torch.Generator | None]:
    """A loader and, if it is not the user's own, the generator that shuffles it."""
    if isinstance(data, DataLoader):
        return data, None
    dataset = _pair(data) if isinstance(data, tuple) else data
    if not _length(dataset):
        raise DataError("data= has no samples; a client needs at least one")
    # BatchNorm needs more than one value for a variance.
    single = _length(dataset) % batch == 1 < batch
    shuffling = torch.Generator()
    return DataLoader(dataset, batch_size=batch, shuffle=True, drop_last=single, generator=shuffling), shuffling


def _pair(data: tuple[Any, ...]) -> TensorDataset:
    inputs_and_targets = [torch.as_tensor(part) for part in data]
    lengths = [len(part) for part in inputs_and_targets]
    if len(lengths) != 2 or lengths[0] != lengths[1]:
        raise DataError(
            "data= must be a pair of tensors, inputs and targets, with an entry per sample in both; got "
            f"{plural(len(lengths), 'tensor')} with {' and '.join(map(str, lengths))} entries"
        )
    return TensorDataset(*inputs_and_targets)


def _length(dataset: Any) -> int:
    try:
        return len(dataset)
    except TypeError as error:
        raise DataError("data= must have a length: an IterableDataset does not; pass train= and samples=") from error
