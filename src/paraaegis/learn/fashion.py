"""Fashion-MNIST from its four IDX files, gzipped or not."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np

from paraaegis.errors import DataError
from paraaegis.learn.images import Images, Labels, Parts, missing

DEBIAN = Path("/usr/share/datasets/fashion-mnist")
GET = "apt-get install dataset-fashion-mnist, or the four .gz files of github.com/zalandoresearch/fashion-mnist"
UBYTE = 0x08  # the IDX code of unsigned bytes


def read(folder: Path) -> Parts:
    """Read the 60,000 training and 10,000 test images in `folder`."""
    return (*_read_part(folder, "train"), *_read_part(folder, "t10k"))


def _read_part(folder: Path, part: str) -> tuple[Images, Labels]:
    images = _read_idx(_find(folder, f"{part}-images-idx3-ubyte"), 3)
    labels = _read_idx(_find(folder, f"{part}-labels-idx1-ubyte"), 1)
    return images[..., np.newaxis], labels.astype(np.int64)


def _find(folder: Path, name: str) -> Path:
    for path in (folder / f"{name}.gz", folder / name):
        if path.is_file():
            return path
    raise missing("fashion-mnist", f"{name}.gz or {name}", folder, GET)


def _read_idx(path: Path, dimensions: int) -> Images:
    """Read an IDX file: two zeros, type, number of dimensions, each dimension as big-endian uint32, bytes."""
    content = _content(path)
    header = 4 + 4 * dimensions
    if len(content) < header or content[:4] != bytes((0, 0, UBYTE, dimensions)):
        raise DataError(
            f"{path} is not an IDX file of {dimensions}-dimensional bytes: it starts with {content[:4].hex(' ')}"
        )
    shape = struct.unpack(f">{dimensions}I", content[4:header])
    if len(content) != header + math.prod(shape):
        raise DataError(f"{path} should hold {shape} bytes after its header, got {len(content) - header}")
    return np.frombuffer(content, dtype=np.uint8, offset=header).reshape(shape)


def _content(path: Path) -> bytes:
    try:
        return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
