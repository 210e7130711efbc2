"""The types that every data set reader returns, and the error for missing files."""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from paraaegis.errors import DataError

Images: TypeAlias = NDArray[np.uint8]  # (n, height, width, channels)
Labels: TypeAlias = NDArray[np.int64]  # (n,)
Parts: TypeAlias = tuple[Images, Labels, Images, Labels]  # train images and labels, test images and labels


def missing(name: str, what: str, folder: Path, get: str) -> DataError:
    """Return an error that says what is missing in `folder`, where to get it and where to put it."""
    return DataError(f"{name}: no {what} in {folder.absolute()}. Get it: {get}. Put it there, or set data.folder.")
