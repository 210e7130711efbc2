"""Imagenette from its official folders, decoded once into an array that later runs memory-map."""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from paraaegis.errors import DataError
from paraaegis.learn.images import Images, Labels, Parts, missing

GET = "imagenette2-160.tgz (or -320, or full size) from github.com/fastai/imagenette, unpacked"
CLASSES = 10
SUFFIXES = (".jpeg", ".jpg")

_log = logging.getLogger(__name__)


def log_progress(done: int, total: int) -> None:
    """Log every tenth of the images."""
    if done * 10 // total != (done - 1) * 10 // total:
        _log.info("decoded %d of %d images", done, total)


def read(folder: Path, size: int = 128, progress: Callable[[int, int], None] = log_progress) -> Parts:
    """Read the images under {train,val}/{wnid}, resized to `size`×`size`. Classes are in the order of sorted wnids."""
    root = _root(folder)
    return (*_read_part(root / "train", size, progress), *_read_part(root / "val", size, progress))


def _root(folder: Path) -> Path:
    """Find train and val in `folder`, or in the one subfolder that has them."""
    inner = sorted(folder.iterdir()) if folder.is_dir() else []
    roots = [path for path in (folder, *inner) if (path / "train").is_dir() and (path / "val").is_dir()]
    if not roots:
        raise missing("imagenette", "folders train and val", folder, GET)
    if roots[0] != folder and len(roots) > 1:
        names = ", ".join(path.name for path in roots)
        raise DataError(f"imagenette: {folder} has several copies, {names}; set data.folder to one of them")
    return roots[0]


def _read_part(part: Path, size: int, progress: Callable[[int, int], None]) -> tuple[Images, Labels]:
    wnids = sorted(path.name for path in part.iterdir() if path.is_dir() and not path.name.startswith("."))
    if len(wnids) != CLASSES:
        raise DataError(f"imagenette: {part} should have {CLASSES} class folders, got {len(wnids)}; unpack it again")
    files = [_files(part / wnid) for wnid in wnids]
    labels = np.repeat(np.arange(CLASSES, dtype=np.int64), [len(names) for names in files])
    return _cached(part, [path for names in files for path in names], size, progress), labels


def _files(folder: Path) -> list[Path]:
    files = sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES)
    if not files:
        raise DataError(f"imagenette: no .JPEG files in {folder}; unpack the archive again")
    return files


def _cached(part: Path, files: Sequence[Path], size: int, progress: Callable[[int, int], None]) -> Images:
    """Read the decoded images from the cache if it was made from the same files; otherwise make it."""
    name = f"imagenette-{part.name}-{size}-{_fingerprint(part, files)}.npy"
    places = (part.parent / ".paraaegis-cache", Path.home() / ".cache" / "paraaegis")
    for place in places:
        images = _map(place / name, (len(files), size, size, 3))
        if images is not None:
            return images
    writable = [place for place in places if _writable(place)]
    if not writable:
        raise DataError(
            f"imagenette: decoded images need a writable folder, but neither {places[0]} nor {places[1]} is writable"
        )
    return _decode_into(writable[0] / name, files, size, progress)


def _fingerprint(part: Path, files: Sequence[Path]) -> str:
    """A fingerprint of the files' names and sizes, so that a cache of other files is never used."""
    listing = "\n".join(f"{path.relative_to(part)} {path.stat().st_size}" for path in files)
    return hashlib.sha256(listing.encode()).hexdigest()[:16]


def _map(path: Path, shape: tuple[int, ...]) -> Images | None:
    try:
        images = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError):  # absent or damaged: the images are decoded again
        return None
    return images if images.shape == shape and images.dtype == np.uint8 else None


def _writable(place: Path) -> bool:
    try:
        place.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=place):
            return True
    except OSError:
        return False


def _decode_into(path: Path, files: Sequence[Path], size: int, progress: Callable[[int, int], None]) -> Images:
    """Decode in threads (Pillow releases the GIL) and rename at the end: a cache is complete or absent."""
    shape = (len(files), size, size, 3)
    handle, name = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    os.close(handle)
    temporary = Path(name)
    try:
        images = np.lib.format.open_memmap(temporary, mode="w+", dtype=np.uint8, shape=shape)
        with ThreadPoolExecutor() as pool:
            for index, image in enumerate(pool.map(lambda file: _decode(file, size), files)):
                images[index] = image
                progress(index + 1, len(files))
        images.flush()
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return np.lib.format.open_memmap(path, mode="r")


def _decode(path: Path, size: int) -> Images:
    from PIL import Image

    try:
        with Image.open(path) as image:
            return np.asarray(image.convert("RGB").resize((size, size), Image.Resampling.BILINEAR))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise DataError(f"imagenette: {path} is not a readable image: {error}") from error
