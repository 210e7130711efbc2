"""Our messages as Flower records: each frame is an array of raw bytes, which Flower splits up.

The protocol's have Flower's type "train"; the record MARK names the stage. A client's mods see only messages for
functions that its app has registered, and every app has one for training.
"""

from __future__ import annotations

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from paraaegis.errors import ProtocolError
from paraaegis.protocol.messages import Frames

_RAW = "raw.bytes"
TYPE, EVALUATE = "train", "evaluate"  # of Flower's messages
OURS = "paraaegis:"  # begins the names of our records; no client's name has a colon
MARK, FRAMES, CONFIG = f"{OURS}stage", f"{OURS}frames", f"{OURS}config"


def marked(stage: str, content: RecordDict) -> RecordDict:
    """The content of a message of this stage: "who", "ask", "seal", "open", "step" or, in a drop-in, "evaluate"."""
    content[MARK] = ConfigRecord({"stage": stage})
    return content


def stage_of(content: RecordDict) -> str:
    """The stage that a message is marked with; empty without a mark."""
    return str(content.config_records[MARK].get("stage", "")) if MARK in content.config_records else ""


def to_records(frames: Frames) -> RecordDict:
    """One array per frame, in order."""
    arrays = {
        f"{number:06d}": Array("uint8", (memoryview(frame).nbytes,), _RAW, bytes(frame))
        for number, frame in enumerate(frames)
    }
    return RecordDict({FRAMES: ArrayRecord(arrays)})


def from_records(content: RecordDict) -> Frames:
    """The frames that `to_records` stored; raises the error if a client sent one instead."""
    from_error(content)
    if FRAMES not in content.array_records:
        raise ProtocolError("got a message without frames")
    arrays = content.array_records[FRAMES]
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
