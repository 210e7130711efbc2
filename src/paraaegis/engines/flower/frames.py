"""Convert our messages' frames to Flower records: each frame is an array of raw bytes, which Flower splits up."""

from __future__ import annotations

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from paraaegis.errors import ProtocolError
from paraaegis.protocol.messages import Frames

_RAW = "raw.bytes"


def to_records(frames: Frames) -> RecordDict:
    """One array per frame, in order."""
    arrays = {
        f"{number:06d}": Array("uint8", (memoryview(frame).nbytes,), _RAW, bytes(frame))
        for number, frame in enumerate(frames)
    }
    return RecordDict({"frames": ArrayRecord(arrays)})


def from_records(content: RecordDict) -> Frames:
    """The frames that `to_records` stored; raises the error if a client sent one instead."""
    from_error(content)
    if "frames" not in content.array_records:
        raise ProtocolError("got a message without frames")
    arrays = content.array_records["frames"]
    return tuple(arrays[name].data for name in sorted(arrays))


def error_in(content: RecordDict) -> str:
    """The error that a client sent instead of an answer; empty if there is none."""
    if "error" not in content.config_records:
        return ""
    return str(content.config_records["error"].get("text") or "it failed")


def from_error(content: RecordDict) -> None:
    """Raise the error that a client sent, if any."""
    if text := error_in(content):
        raise ProtocolError(text)


def to_error(text: str) -> RecordDict:
    """A record with the reason why a client does not answer."""
    return RecordDict({"error": ConfigRecord({"text": text})})
