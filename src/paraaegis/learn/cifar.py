"""CIFAR-10 from its Python batches, which are pickles and are therefore read with a restricted unpickler."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np

from paraaegis.errors import DataError
from paraaegis.learn.images import Images, Labels, Parts, missing

GET = "cifar-10-python.tar.gz from www.cs.toronto.edu/~kriz/cifar.html, unpacked"
TRAIN = tuple(f"data_batch_{number}" for number in range(1, 6))
TEST = ("test_batch",)

# A pickle can call anything it can name. These files only need to build arrays.
_RECONSTRUCT = np.empty(0).__reduce__()[0]
_ADMITTED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
}


def read(folder: Path) -> Parts:
    """Read the 50,000 training and 10,000 test images in `folder` or its cifar-10-batches-py."""
    inner = folder / "cifar-10-batches-py"
    root = inner if inner.is_dir() else folder
    return (*_read_batches(root, TRAIN), *_read_batches(root, TEST))


def _read_batches(root: Path, names: tuple[str, ...]) -> tuple[Images, Labels]:
    for name in names:
        if not (root / name).is_file():
            raise missing("cifar10", name, root, GET)
    batches = [_read_batch(root / name) for name in names]
    return np.concatenate([images for images, _ in batches]), np.concatenate([labels for _, labels in batches])


def _read_batch(path: Path) -> tuple[Images, Labels]:
    batch = _unpickle(path)
    data, labels = (batch.get(b"data"), batch.get(b"labels")) if isinstance(batch, dict) else (None, None)
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != 3072:
        raise DataError(f"{path} has no uint8 images of 3072 bytes under 'data'")
    if not isinstance(labels, list) or len(labels) != len(data) or not all(type(x) is int for x in labels):
        raise DataError(f"{path} should have {len(data)} integers under 'labels' and does not")
    planes = data.reshape(-1, 3, 32, 32)
    return np.ascontiguousarray(planes.transpose(0, 2, 3, 1)), np.array(labels, dtype=np.int64)


class _ArraysOnly(pickle.Unpickler):
    """Builds numbers, strings, lists, dicts and arrays; refuses to look up anything else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ADMITTED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which a CIFAR-10 batch does not need")
        return _ADMITTED[module, name]


def _unpickle(path: Path) -> object:
    try:
        with path.open("rb") as file:
            return _ArraysOnly(file, encoding="bytes").load()
    except Exception as error:  # a damaged pickle raises almost anything
        raise DataError(f"{path} is not a CIFAR-10 batch: {error}") from error
