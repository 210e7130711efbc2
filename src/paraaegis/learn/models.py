"""The models by name. Inputs are (batch, channels, height, width), outputs are logits."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from paraaegis.errors import ConfigError
from paraaegis.learn.vector import spans_of

Shape: TypeAlias = tuple[int, int, int]  # height, width and channels of an image
Norm: TypeAlias = Callable[[int], nn.Module]  # for a number of channels
SMALLEST = 8  # pixels per side


def build(name: str, shape: Shape, classes: int, seed: int | np.random.Generator) -> nn.Module:
    """Build the model `name` for images of `shape`, with initial weights drawn from `seed`, an integer or a generator.

    numpy draws them uniformly: torch's normal samples can differ in their last bits between processors, and all
    clients must start from the same model. torch's own generator is not used or advanced.
    """
    if name not in MODELS:
        raise ConfigError(f"model.name must be one of {', '.join(MODELS)}, got {name!r}")
    if min(shape[:2]) < SMALLEST:
        raise ConfigError(f"{name} needs images of at least {SMALLEST}×{SMALLEST} pixels, got {shape[0]}×{shape[1]}")
    with torch.device("meta"):  # allocates no memory, so torch does not initialise it
        model = MODELS[name](shape, classes)
    model.to_empty(device="cpu")
    _initialise(model, np.random.default_rng(seed))
    return model


def has_batch_norm(name: str) -> bool:
    """Whether the model `name` keeps running statistics of its activations."""
    with torch.device("meta"):
        model = MODELS[name]((32, 32, 3), 10)
    return bool(spans_of(model, "running_var"))


def _initialise(model: nn.Module, rng: np.random.Generator) -> None:
    """Initialise convolutions with He's variance 2/fan_out, linear layers as in torch, BatchNorm to the identity."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            fan_out = module.out_channels * math.prod(module.kernel_size)
            _uniform(module.weight, math.sqrt(6 / fan_out), rng)
            _uniform(module.bias, 0.0, rng)
        elif isinstance(module, nn.Linear):
            _uniform(module.weight, 1 / math.sqrt(module.in_features), rng)
            _uniform(module.bias, 1 / math.sqrt(module.in_features), rng)
        elif isinstance(module, (nn.BatchNorm2d, nn.GroupNorm)):
            module.reset_parameters()


@torch.no_grad()
def _uniform(weights: Tensor | None, bound: float, rng: np.random.Generator) -> None:
    if weights is not None:
        draws = rng.random(weights.shape, dtype=np.float32)
        weights.copy_(torch.from_numpy((draws * 2 - 1) * np.float32(bound)))


def mlp(shape: Shape, classes: int) -> nn.Module:
    """One hidden layer of 128, without BatchNorm."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), 128), nn.ReLU(), nn.Linear(128, classes))


def group_norm(channels: int) -> nn.Module:
    """GroupNorm with 32 channels per group; it normalises each sample by itself."""
    return nn.GroupNorm(max(1, channels // 32), channels)


def cnn(shape: Shape, classes: int, norm: Norm = nn.BatchNorm2d) -> nn.Module:
    """Convolutions of 32 and 64 channels with BatchNorm, then 128 hidden units.

    The last feature maps are average-pooled to 4×4 for any image size (for 8×8 images they already are 4×4).
    """
    return nn.Sequential(
        nn.Conv2d(shape[2], 32, 3, padding=1),
        norm(32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        norm(64),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(64 * 4 * 4, 128),
        nn.ReLU(),
        nn.Linear(128, classes),
    )


def cnn_tanh(shape: Shape, classes: int) -> nn.Module:
    """The network of Papernot et al. (2020) for DP-SGD: pairs of convolutions with tanh, without normalisation."""
    layers: list[nn.Module] = []
    inputs = shape[2]
    for width, pool in ((32, nn.AvgPool2d(2)), (64, nn.AvgPool2d(2)), (128, nn.AdaptiveAvgPool2d(4))):
        layers += [nn.Conv2d(inputs, width, 3, padding=1), nn.Tanh(), nn.Conv2d(width, width, 3, padding=1), nn.Tanh()]
        layers.append(pool)
        inputs = width
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(inputs * 4 * 4, 128), nn.Tanh(), nn.Linear(128, classes))


def _conv(inputs: int, outputs: int, kernel: int, stride: int) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)


class Block(nn.Module):
    """Two 3×3 convolutions with a shortcut connection."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.conv1 = _conv(inputs, outputs, 3, stride)
        self.bn1 = norm(outputs)
        self.conv2 = _conv(outputs, outputs, 3, 1)
        self.bn2 = norm(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = nn.Sequential(_conv(inputs, outputs, 1, stride), norm(outputs)) if stride > 1 else None

    def forward(self, x: Tensor) -> Tensor:
        """Add the shortcut, downsampled if needed, to the output of the convolutions."""
        shortcut = x if self.downsample is None else self.downsample(x)
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.bn2(self.conv2(x))
        x += shortcut
        out: Tensor = self.relu(x)
        return out


class ResNet18(nn.Module):
    """ResNet-18 (He et al. 2016) with torchvision's parameter names, so that weights load in either."""

    def __init__(self, channels: int, classes: int, norm: Norm) -> None:
        super().__init__()
        self.conv1 = _conv(channels, 64, 7, 2)
        self.bn1 = norm(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, padding=1)
        self.layer1 = nn.Sequential(Block(64, 64, 1, norm), Block(64, 64, 1, norm))
        self.layer2 = nn.Sequential(Block(64, 128, 2, norm), Block(128, 128, 1, norm))
        self.layer3 = nn.Sequential(Block(128, 256, 2, norm), Block(256, 256, 1, norm))
        self.layer4 = nn.Sequential(Block(256, 512, 2, norm), Block(512, 512, 1, norm))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(512, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Compute the logits of a batch of images."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        logits: Tensor = self.fc(self.avgpool(x).flatten(1))
        return logits


def resnet18(shape: Shape, classes: int, norm: Norm = nn.BatchNorm2d) -> nn.Module:
    """ResNet-18 as for ImageNet; its last feature maps are average-pooled to 1×1 for any image size."""
    return ResNet18(shape[2], classes, norm)


def cnn_gn(shape: Shape, classes: int) -> nn.Module:
    """The same as cnn with GroupNorm, for record-level DP."""
    return cnn(shape, classes, group_norm)


def resnet18_gn(shape: Shape, classes: int) -> nn.Module:
    """ResNet-18 with GroupNorm, for record-level DP."""
    return resnet18(shape, classes, group_norm)


MODELS: dict[str, Callable[[Shape, int], nn.Module]] = {
    "mlp": mlp,
    "cnn": cnn,
    "resnet18": resnet18,
    "cnn-tanh": cnn_tanh,
    "cnn-gn": cnn_gn,
    "resnet18-gn": resnet18_gn,
}
