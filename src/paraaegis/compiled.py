"""Loops that numba compiles to machine code on their first call."""

from __future__ import annotations

import os
import stat
import tempfile
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any


@cache
def compiled(function: Callable[..., Any], *parts: Callable[..., Any]) -> Callable[..., Any]:
    """The compiled form of a function over arrays. It runs without the GIL and is cached on disk.

    `parts` are the functions that it calls. They must be in the same file: numba compiles again when that one changes.

    numba caches it next to the source or in the user's cache folder, or in NUMBA_CACHE_DIR if that is set. If none of
    these is writable, our own folder is used for everything that numba compiles in this process from then on; failing
    that, every process compiles again.
    """
    import numba
    from numba.extending import register_jitable

    for part in parts:
        register_jitable(part)
    try:
        return numba.njit(nogil=True, cache=True)(function)  # type: ignore[no-any-return]
    except RuntimeError:  # numba found no writable folder
        folder = _private_folder()
    if folder is None:
        _warn_once()
        return numba.njit(nogil=True)(function)  # type: ignore[no-any-return]
    numba.config.CACHE_DIR = str(folder)
    return numba.njit(nogil=True, cache=True)(function)  # type: ignore[no-any-return]


def _private_folder() -> Path | None:
    """A folder that only this user can write to, since numba executes its contents; None if there is none."""
    folder = Path(tempfile.gettempdir()) / f"paraaegis-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    except OSError:
        return None
    ours = status.st_uid == os.getuid() and stat.S_ISDIR(status.st_mode) and stat.S_IMODE(status.st_mode) == 0o700
    return folder if ours and os.access(folder, os.W_OK) else None


@cache
def _warn_once() -> None:
    warnings.warn(
        "no writable folder for compiled code: every process compiles it again, which takes a second; "
        "set NUMBA_CACHE_DIR to a folder that only you can write to",
        stacklevel=4,
    )
