"""Random crops and flips of a whole batch, in one resampling step."""

from __future__ import annotations

import numpy as np
import torch.nn.functional as F  # noqa: N812 — torch's own convention
from numpy.typing import NDArray
from torch import Tensor

AREA = (0.35, 1.0)  # of the image that a crop keeps
RATIO = (3 / 4, 4 / 3)  # width to height of a crop


def resample(images: Tensor, crops: Tensor) -> Tensor:
    """Crop and flip images (n, c, h, w) by the matrices of `draw_crops`; each crop is resized to the original size."""
    grid = F.affine_grid(crops, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, mode="bilinear", padding_mode="border", align_corners=False)


def draw_crops(count: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """Draw one 2×3 matrix per image, from output to input coordinates, both in -1..1."""
    area, ratio, across, down, flip = rng.random((5, count))
    area = AREA[0] + area * (AREA[1] - AREA[0])
    ratio = np.exp(np.log(RATIO[0]) + ratio * np.log(RATIO[1] / RATIO[0]))
    width = np.minimum(np.sqrt(area * ratio), 1)
    height = np.minimum(np.sqrt(area / ratio), 1)
    theta = np.zeros((count, 2, 3), dtype=np.float32)
    theta[:, 0, 0] = np.where(flip < 0.5, -width, width)
    theta[:, 0, 2] = (2 * across - 1) * (1 - width)
    theta[:, 1, 1] = height
    theta[:, 1, 2] = (2 * down - 1) * (1 - height)
    return theta
