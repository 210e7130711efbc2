"""Attach a torch model of your own: a `Learner` from an `nn.Module` and your data or your training loop."""

from __future__ import annotations

import inspect
import io
import pickle
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from paraaegis.errors import ConfigError, DataError, RunError, UpdateError
from paraaegis.learn.keep import Kept, check_keep, restore, state_of
from paraaegis.learn.owned_loop import Data, MakeOptimizer, OwnedLoop, Rate, make_loader
from paraaegis.learn.private import Loss
from paraaegis.learn.vector import check_length, floats, from_vector, integers, save_state, spans_of, to_vector
from paraaegis.types import Arrays, Draw, Metrics, RecordPrivacy, Vector

Train: TypeAlias = Callable[..., Metrics | None]  # of the model, or of the model and the round
Evaluate: TypeAlias = Callable[[nn.Module], Metrics]

_UNFIT = (KeyError, TypeError, ValueError, AttributeError, RuntimeError, EOFError, pickle.UnpicklingError)


def torch_learner(
    model: nn.Module,
    train: Train | None = None,
    evaluate: Evaluate | None = None,
    samples: int | None = None,
    *,
    data: Data | None = None,
    loss: Loss = nn.functional.cross_entropy,
    optimizer: MakeOptimizer | None = None,
    epochs: int | None = None,
    batch: int = 32,
    lr: Rate | None = None,
    keep: Sequence[Kept] = (),
) -> TorchAttachment:
    """One client from a torch model.

    With your own loop, `train(model)` or `train(model, round)` trains the model in place on this client's data and may
    return metrics; `samples` is the number of its training samples. Objects in `keep`, such as the loop's optimiser
    or a `torch.Generator`, are saved and restored with the run.

    With `data` (a data set, a loader, or a pair of tensors) the library trains: `epochs` passes per round (default: 1)
    over batches of `batch` samples, with `loss(outputs, targets)` and `optimizer(parameters)` (default: SGD, momentum
    0.9). `lr` is the learning rate, or a function that returns that of a round (default: 0.01, or what your optimiser
    has).
    Batches of a data set or of tensors are shuffled in a way that depends on the round alone; a loader shuffles itself.
    With `privacy.unit = "record"` in the configuration the library trains with DP-SGD; the configuration then says how
    many steps a round has, and `batch` is how many samples' gradients are in memory at a time.

    `evaluate(model)` returns metrics of the model on this client's own test data, NaN for one that is undefined there,
    such as AUC on a single class; leave it out if there are none. All clients need the same model: build it after
    `torch.manual_seed(…)`, or load the same weights into it.

    Clients train in several threads, each with its own model; one client is never in two threads at once.
    """
    if (train is None) == (data is None):
        raise ConfigError("torch_learner needs either train=, your own loop, or data=, for the library's loop")
    _check_model(model)
    kept = check_keep(keep)
    if train is None and data is not None:
        owned = OwnedLoop(model, *make_loader(data, batch), loss, optimizer, epochs, lr)
        return TorchAttachment(model, owned.run, evaluate, owned.samples, (owned.optimizer, *kept), owned)
    if train is None or samples is None:
        raise ConfigError("torch_learner(train=…) needs samples=, the number of this client's training samples")
    if lr is not None:
        raise ConfigError(
            "lr= is for data=; with train=, your own loop sets the learning rate, and it may take the round"
        )
    return TorchAttachment(model, _with_round(train), evaluate, samples, kept)


class TorchAttachment:
    """A torch model with its owner's training and evaluation, as a `Learner`."""

    def __init__(
        self,
        model: nn.Module,
        train: Callable[[nn.Module, int], Metrics | None],
        evaluate: Evaluate | None,
        samples: int,
        keep: tuple[Kept, ...],
        owned: OwnedLoop | None = None,
    ) -> None:
        if not isinstance(samples, int) or isinstance(samples, bool) or samples < 1:
            raise DataError(f"samples must be a whole number of at least 1, got {samples!r}")
        self.model, self.samples = model, samples
        self._train, self._evaluate, self._keep, self._owned = train, evaluate, keep, owned
        self.record_privacy: RecordPrivacy | None = None
        self._initial = to_vector(model)
        self._variances = spans_of(model, "running_var")

    @property
    def has_batch_norm(self) -> bool:
        """Whether the model keeps running statistics, whose updates can be large."""
        return bool(self._variances)

    def protect_records(self, privacy: RecordPrivacy | None, draw: Draw) -> None:
        """Train with DP-SGD from now on, or without it if `privacy` is None; `draw` draws samples and noise."""
        if self._owned is not None:
            self._owned.protect_records(self.model, privacy, draw)
        elif privacy is not None:
            raise ConfigError(
                'privacy.unit = "record" needs the library\'s training loop, which bounds what one record changes; '
                "pass data= to torch_learner instead of train="
            )
        self.record_privacy = privacy

    def initial(self) -> Vector:
        """The model as it was attached."""
        return self._initial.copy()

    def train(self, weights: Vector, number: int) -> tuple[Vector, Metrics]:
        """Train from `weights` in round `number`; the new model, and what the loop returned."""
        from_vector(self.model, weights)
        self.model.train()
        metrics = self._train(self.model, number)
        return self._vector(), _detached(metrics or {})

    def apply(self, weights: Vector, delta: Vector) -> Vector:
        """Add the aggregated update; BatchNorm's variances stay at or above zero."""
        check_length(delta, self._initial.size)
        model: Vector = np.add(weights, delta, dtype=np.float32)
        for span in self._variances:
            np.maximum(model[span], 0, out=model[span])
        return model

    def evaluate(self, weights: Vector) -> Metrics:
        """What the owner measures; nothing without `evaluate`."""
        if self._evaluate is None:
            return {}
        from_vector(self.model, weights)
        self.model.eval()
        with torch.no_grad():
            metrics: Metrics = _detached(self._evaluate(self.model))
        return metrics

    def state(self) -> Arrays:
        """Integer buffers and the states in `keep`, which are not part of the vector."""
        buffer = io.BytesIO()
        torch.save([integers(self.model), [state_of(part) for part in self._keep]], buffer)
        return {"torch": np.frombuffer(buffer.getvalue(), dtype=np.uint8)}

    def load(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore what `state` returned."""
        try:
            content = io.BytesIO(state["torch"].tobytes())
            buffers, kept = torch.load(content, weights_only=True)
            if len(kept) != len(self._keep):
                raise ValueError(f"it holds the states of {len(kept)} objects, got keep= with {len(self._keep)}")
            self.model.load_state_dict(buffers, strict=False)
            for part, saved in zip(self._keep, kept, strict=True):
                restore(part, saved)
        except _UNFIT as error:
            reason = str(error).partition("\n")[0]
            raise RunError(f"the stored state of a learner does not fit this one: {reason}") from error

    def save(self, path: Path, weights: Vector) -> None:
        """Write the model with these weights as a `state_dict`, for `torch.load(path, weights_only=True)`."""
        save_state(path, self.model, weights)

    def _vector(self) -> Vector:
        size = sum(tensor.numel() for tensor in floats(self.model).values())
        if size != self._initial.size:
            raise UpdateError(
                f"the model had {self._initial.size} values and has {size} after training: a round must not add or "
                "remove layers"
            )
        return to_vector(self.model)


def _detached(metrics: Any) -> Any:
    """Metrics without torch's graph, which torch warns of when they become numbers; a learner's caller checks them."""
    if not isinstance(metrics, Mapping):
        return metrics
    return {name: value.detach() if isinstance(value, Tensor) else value for name, value in metrics.items()}


def _with_round(train: Train) -> Callable[[nn.Module, int], Metrics | None]:
    """The user's loop, which may or may not want to know the round."""
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    try:
        parameters = inspect.signature(train).parameters.values()
    except ValueError:  # a builtin tells nothing
        return train
    free = [one for one in parameters if one.kind in positional and one.default is inspect.Parameter.empty]
    takes_round = len(free) > 1 or any(one.kind is inspect.Parameter.VAR_POSITIONAL for one in parameters)
    return train if takes_round else lambda model, _number: train(model)


def _check_model(model: Any) -> None:
    if not isinstance(model, nn.Module):
        raise ConfigError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    if lazy := [name for name, value in model.state_dict().items() if is_lazy(value)]:
        raise ConfigError(f"{lazy[0]} has no size yet; call the model once on an example before it is attached")
    tensors = floats(model)
    if not tensors:
        raise ConfigError("the model has no floating-point parameters to share")
    if odd := {name: tensor.dtype for name, tensor in tensors.items() if tensor.dtype != torch.float32}:
        name, dtype = next(iter(odd.items()))
        raise ConfigError(f"{name} is {dtype}; models are shared in float32: call model.float() first")
    if len(devices := {str(tensor.device) for tensor in model.state_dict().values()}) > 1:
        raise ConfigError(
            f"the model is on several devices, {', '.join(sorted(devices))}; move all of it to one device with .to()"
        )
    if devices == {"meta"}:
        raise ConfigError(
            "the model is on the device meta and has no values; call model.to_empty(device=...) and set its values"
        )
