"""The data sets by name, each as one `Dataset`: uint8 images in NHWC layout and int64 labels.

Nothing is downloaded. `describe` lists where to get each data set; so does the error when one is missing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np

from paraaegis.errors import ConfigError, DataError
from paraaegis.learn import cifar, fashion, imagenette
from paraaegis.learn.images import Images, Labels, Parts

Progress: TypeAlias = Callable[[int, int], None]  # images done, images in total
PHOTO_SIDE = 128


@dataclass(frozen=True, eq=False)  # arrays have no single answer to ==
class Dataset:
    """Images (n, height, width, channels), their labels in 0..classes-1, and how to feed them to a model."""

    name: str
    train_images: Images
    train_labels: Labels
    test_images: Images
    test_labels: Labels
    classes: int
    augment: bool
    mean: tuple[float, ...]  # of each channel, pixels in 0..1
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        self._check("train", self.train_images, self.train_labels)
        self._check("test", self.test_images, self.test_labels)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width and channels of an image."""
        _, height, width, channels = self.train_images.shape
        return height, width, channels

    def _check(self, part: str, images: Images, labels: Labels) -> None:
        if not len(images) or len(images) != len(labels) or images.shape[1:] != self.train_images.shape[1:]:
            raise DataError(
                f"{self.name}: {part} needs images of one shape and a label for each, "
                f"got images {images.shape} and labels {labels.shape}"
            )
        if labels.min() < 0 or labels.max() >= self.classes:
            raise DataError(
                f"{self.name}: {part} labels must lie in 0..{self.classes - 1}, got {labels.min()}..{labels.max()}"
            )


@dataclass(frozen=True)
class Source:
    """A data set that can be loaded. `home` is its default folder.

    Mean and standard deviation are constants: in a federation nobody sees all the data to compute them from, and
    every client must use the same.
    """

    description: str
    get: str
    home: Path
    read: Callable[[Path, int, Progress], Parts]
    augment: bool
    mean: tuple[float, ...]
    std: tuple[float, ...]
    photos: bool = False  # images of any resolution, which `size` applies to
    classes: int = 10


def read_digits() -> Parts:
    """Load scikit-learn's digits: 1,437 for training and 360 for testing.

    Every fifth sample in label order is for testing: stratified, and the same in every run.
    """
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    images = np.rint(pixels * (255 / 16)).astype(np.uint8).reshape(-1, 8, 8, 1)
    labels = labels.astype(np.int64)
    test = np.zeros(len(labels), dtype=np.bool_)
    test[np.argsort(labels, kind="stable")[::5]] = True
    return images[~test], labels[~test], images[test], labels[test]


DATASETS: dict[str, Source] = {
    "digits": Source(
        description="1,797 handwritten digits, 8×8 grey",
        get="included in scikit-learn, nothing to do",
        home=Path(),
        read=lambda _folder, _size, _progress: read_digits(),
        augment=False,
        mean=(0.3058,),
        std=(0.3761,),
    ),
    "fashion-mnist": Source(
        description="70,000 images of clothing, 28×28 grey",
        get=fashion.GET,
        home=fashion.DEBIAN,
        read=lambda folder, _size, _progress: fashion.read(folder),
        augment=False,
        mean=(0.2860,),
        std=(0.3530,),
    ),
    "cifar10": Source(
        description="60,000 small photographs in 10 classes, 32×32 colour",
        get=cifar.GET,
        home=Path("data/cifar10"),
        read=lambda folder, _size, _progress: cifar.read(folder),
        augment=True,
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2470, 0.2435, 0.2616),
    ),
    "imagenette": Source(
        description="13,394 photographs of 10 ImageNet classes, colour, resized to 128×128",
        get=imagenette.GET,
        home=Path("data/imagenette"),
        read=imagenette.read,
        augment=True,
        mean=(0.485, 0.456, 0.406),
        std=(0.229, 0.224, 0.225),
        photos=True,
    ),
}


def describe() -> list[tuple[str, str, str]]:
    """List the name, description and source of every data set."""
    return [(name, source.description, source.get) for name, source in DATASETS.items()]


def load(
    name: str,
    folder: Path | None = None,
    *,
    size: int | None = None,
    progress: Progress = imagenette.log_progress,
) -> Dataset:
    """Load the data set `name` from `folder`, or from its default folder.

    Photographs are resized to `size`×`size` pixels (default 128), ignoring their aspect ratio. Decoding them takes a
    while the first time; `progress` is called as it proceeds and writes to the log by default.
    """
    source = DATASETS.get(name)
    if source is None:
        raise ConfigError(f"data.name must be one of {', '.join(DATASETS)}, got {name!r}")
    if size is not None and (not source.photos or size < 1):
        raise ConfigError(f"size must be a positive number of pixels, for photographs only; got {size} for {name}")
    parts = source.read((folder or source.home).expanduser(), size or PHOTO_SIDE, progress)
    return Dataset(name, *parts, source.classes, source.augment, source.mean, source.std)
