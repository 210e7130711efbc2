"""DP-SGD: Poisson sampling, clipping of each sample's gradient, and noise.

torch.func computes the gradient of one sample at a time, vectorised. So a sample's gradient depends on that sample
alone, whatever layers the model has; hooks (as in Opacus) need a rule for each kind of layer. Sampling and noise come
from the generator that the caller passes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import grad_and_value, vmap

from paraaegis.errors import ConfigError
from paraaegis.types import RecordPrivacy

Loss: TypeAlias = Callable[[Tensor, Tensor], Tensor]  # of a batch's outputs and targets

_BATCH_NORM = (nn.modules.batchnorm._BatchNorm, nn.modules.batchnorm._LazyNormBase)


def poisson(samples: int, privacy: RecordPrivacy, rng: np.random.Generator) -> Iterator[NDArray[np.int64]]:
    """Draw the samples of each step of a round, each independently with the same probability; a step may have none."""
    for _ in range(privacy.steps):
        yield np.flatnonzero(rng.random(samples) < privacy.sample_rate)


_BELOW = 1 - 2**-14  # gradients are clipped to this share of the clip, so that rounding in float32 never exceeds it


class PrivateGradient:
    """The gradient of one step, from its samples in any number of pieces.

    `outputs(inputs, parameters)` are the model's, computed with these parameters.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        privacy: RecordPrivacy,
        samples: int,
        outputs: Callable[[Tensor, dict[str, Tensor]], Tensor],
    ) -> None:
        check_layers(model)
        self._model, self.privacy, self._outputs, self._loss = model, privacy, outputs, loss
        self._parameters = {name: one for name, one in model.named_parameters() if one.requires_grad}
        first = next(iter(self._parameters.values()))
        self.length = sum(one.numel() for one in self._parameters.values())
        self._sum = torch.zeros(self.length, device=first.device)
        self._noise_type = torch.float32 if first.device.type == "mps" else torch.float64  # MPS has no float64
        self._expected = privacy.sample_rate * samples  # samples in a step
        self.losses = torch.zeros((), device=first.device, dtype=self._noise_type)  # of all samples so far
        self._each = vmap(grad_and_value(self._loss_of_one), (None, 0, 0), randomness="different")

    def begin(self) -> None:
        """Begin a round: clear what an interrupted round may have left in the sum."""
        self._sum.zero_()
        self.losses.zero_()

    @torch.no_grad()
    def add(self, inputs: Tensor, targets: Tensor, counted: Tensor | None = None) -> None:
        """Add the clipped gradients of some samples; those that are not `counted` are padding.

        A gradient with NaN or infinity counts as zero.
        """
        parameters = {name: one.detach() for name, one in self._parameters.items()}
        gradients, losses = self._each(parameters, inputs, targets)
        check_kept(self._model)
        self._gather(gradients, losses, counted)

    def _gather(self, gradients: Mapping[str, Tensor], losses: Tensor, counted: Tensor | None) -> None:
        rows = [one.reshape(one.shape[0], -1).float() for one in gradients.values()]
        norms = torch.stack([torch.linalg.vector_norm(row, dim=1) for row in rows]).norm(dim=0)
        finite = torch.isfinite(norms)
        factors = torch.where(finite, (_BELOW * self.privacy.clip / norms).clamp(max=1), torch.zeros_like(norms))
        valid = torch.isfinite(losses)
        if counted is not None:
            factors, valid = factors * counted, valid & counted.bool()
        parts = torch.split(self._sum, [row.shape[1] for row in rows])
        for part, row in zip(parts, rows, strict=True):
            part += factors @ torch.nan_to_num(row, nan=0.0, posinf=0.0, neginf=0.0)
        self.losses += torch.where(valid, losses, torch.zeros_like(losses)).sum()

    @torch.no_grad()
    def finish(self, noise: Tensor | None) -> None:
        """Set the parameters' gradients to (sum + multiplier·clip·noise) / (expected samples), and begin a new sum.

        `noise` is standard normal; None if the multiplier is 0.
        """
        total = self._sum.to(self._noise_type)
        if noise is not None:
            total += noise.to(total.device) * (self.privacy.multiplier * self.privacy.clip)
        total /= self._expected
        sizes = [one.numel() for one in self._parameters.values()]
        parts = torch.split(total.float(), sizes)
        for parameter, part in zip(self._parameters.values(), parts, strict=True):
            if parameter.grad is None:
                parameter.grad = torch.empty_like(parameter)
            parameter.grad.copy_(part.view(parameter.shape))
        self._sum.zero_()

    def draw_noise(self, rng: np.random.Generator) -> Tensor | None:
        """Standard normal noise for one step, on the CPU; None if the multiplier is 0."""
        if not self.privacy.multiplier:
            return None
        return torch.from_numpy(rng.standard_normal(self.length)).to(self._noise_type)

    def blank_noise(self) -> Tensor | None:
        """Allocate what `draw_noise` fills, on the model's device; None if the multiplier is 0."""
        if not self.privacy.multiplier:
            return None
        return torch.zeros(self.length, dtype=self._noise_type, device=self._sum.device)

    def _loss_of_one(self, parameters: dict[str, Tensor], inputs: Tensor, target: Tensor) -> Tensor:
        return self._loss(self._outputs(inputs.unsqueeze(0), parameters), target.unsqueeze(0))


def private_round(
    gradient: PrivateGradient,
    samples: int,
    rng: np.random.Generator,
    add: Callable[[NDArray[np.int64]], None],
    finish: Callable[[Tensor | None], None],
) -> int:
    """Take the steps of a round: `add` the gradients of the samples drawn, `finish` with noise; how many were drawn."""
    gradient.begin()
    drawn = list(poisson(samples, gradient.privacy, rng))
    for rows in drawn:
        add(rows)
        finish(gradient.draw_noise(rng))
    return sum(map(len, drawn))


def check_kept(model: nn.Module) -> None:
    """Refuse a model that kept something of its samples: later gradients could then depend on more than one sample."""
    for name, layer in model.named_modules():
        for attribute, value in {**layer._buffers, **vars(layer)}.items():
            if any(map(_of_samples, _tensors(value))):
                raise ConfigError(
                    f'privacy.unit = "record" needs gradients of single samples, but {_named(name)} ('
                    f"{type(layer).__name__}) keeps what its forward computed in self.{attribute}, where later "
                    "samples could use it; use a local variable instead"
                )


def _of_samples(tensor: Tensor) -> bool:
    """Whether a tensor that a transformed function kept has a value per sample; others were only computed inside it."""
    transforms = torch._C._functorch
    while transforms.is_functorch_wrapped_tensor(tensor):
        if transforms.is_batchedtensor(tensor):
            return True
        tensor = transforms.get_unwrapped(tensor)
    return False


def _tensors(value: object) -> Iterator[Tensor]:
    """The tensors in an attribute of a layer."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        yield from _tensors(list(value.values()))
    elif isinstance(value, (list, tuple, set)):
        for one in value:
            yield from _tensors(one)


def _named(layer: str) -> str:
    return f"the model's layer {layer!r}" if layer else "the model"


def check_layers(model: nn.Module) -> None:
    """Refuse layers that mix the samples of a batch."""
    for name, layer in model.named_modules():
        tracks = getattr(layer, "track_running_stats", False)
        if isinstance(layer, _BATCH_NORM) or tracks:
            raise ConfigError(
                f'privacy.unit = "record" needs gradients of single samples, but {_named(name)} is a '
                f"{type(layer).__name__}, which mixes the samples of a batch and keeps statistics of them; use "
                "GroupNorm instead: nn.GroupNorm(groups, channels), or one of the models cnn-gn and resnet18-gn"
            )
