"""Spool large replies to disk, instead of memory, until the server is ready for them.

A reply enters the sum only once it is here completely, and is then read chunk by chunk; a client that dies while
sending leaves no trace. The file has no name: it disappears with its last reader.
"""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Sequence
from itertools import accumulate
from typing import IO

from paraaegis.protocol.messages import Frames

LARGE = 16_000_000  # bytes; smaller replies stay in memory


def spooled(frames: Frames) -> Frames:
    """The same frames; if they are large, as views of a file."""
    sizes = [memoryview(frame).nbytes for frame in frames]
    if sum(sizes) < LARGE:
        return frames
    with tempfile.TemporaryFile(prefix="paraaegis-") as file:
        file.writelines(frames)
        file.flush()
        return views(file, sizes)


def views(file: IO[bytes], sizes: Sequence[int], start: int = 0) -> Frames:
    """Views of consecutive frames in a file, read on access."""
    view = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))[start:]
    ends = accumulate(sizes)
    return tuple(view[end - size : end] for size, end in zip(sizes, ends, strict=True))
