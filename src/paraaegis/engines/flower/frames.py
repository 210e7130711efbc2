"""Frames of our messages as Flower's records: each frame an array of raw bytes, which Flower cuts into objects."""

from __future__ import annotations

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from paraaegis.errors import ProtocolError
from paraaegis.protocol.messages import Frames

_RAW = "raw.bytes"


def to_records(frames: Frames) -> RecordDict:
    """One array a frame, in order."""
    arrays = {
        f"{number:06d}": Array("uint8", (memoryview(frame).nbytes,), _RAW, bytes(frame))
        for number, frame in enumerate(frames)
    }
    return RecordDict({"frames": ArrayRecord(arrays)})


def from_records(content: RecordDict) -> Frames:
    """The frames that `to_records` laid down; an error that a client wrote instead is raised here."""
    from_error(content)
    if "frames" not in content.array_records:
        raise ProtocolError("a message without frames came")
    arrays = content.array_records["frames"]
    return tuple(arrays[name].data for name in sorted(arrays))


def error_in(content: RecordDict) -> str:
    """The error that a client wrote instead of an answer; empty if it did not."""
    if "error" not in content.config_records:
        return ""
    return str(content.config_records["error"].get("text") or "it failed")


def from_error(content: RecordDict) -> None:
    """Raise the error that a client wrote, if it did."""
    if text := error_in(content):
        raise ProtocolError(text)


def to_error(text: str) -> RecordDict:
    """Why a client does not answer."""
    return RecordDict({"error": ConfigRecord({"text": text})})
