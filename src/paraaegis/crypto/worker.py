"""One worker process of the pool: works on chunks on request and ends when its standard input ends.

A request is a length and a msgpack array [operation, arguments, bytes in the arena]; the reply is a length and an array
[error, bytes in the arena]. Bulk bytes are passed at the start of the arena, memory shared with the parent.
"""

from __future__ import annotations

import mmap
import os
import signal
import sys
from typing import Any, BinaryIO

import msgspec
import numpy as np

from paraaegis.crypto.ckks_seal import ChunkSecret, ChunkSums
from paraaegis.crypto.profiles import profile
from paraaegis.errors import CryptoError
from paraaegis.types import Buffer


class Sums:
    """A keyless worker's sums, by id."""

    def __init__(self) -> None:
        self._sums: dict[int, ChunkSums] = {}

    def merge(
        self, data: Buffer, sum_id: int, name: str, index: int, count: int, key_id: bytes, subtract: bool
    ) -> bytes:
        """Add a chunk to a sum or subtract it."""
        self._sums.setdefault(sum_id, ChunkSums(profile(name))).merge(index, data, count, key_id, subtract)
        return b""

    def close(self, data: Buffer, sum_id: int, index: int, count: int, key_id: bytes) -> bytes:  # noqa: ARG002
        """Return one chunk of a sum and free it."""
        return self._sums[sum_id].close(index, count, key_id)

    def drop(self, data: Buffer, sum_id: int) -> bytes:  # noqa: ARG002
        """Drop a sum."""
        self._sums.pop(sum_id, None)
        return b""


KEPT = 4  # keys: each round has its own, and consecutive rounds overlap


class Secrets:
    """A client's worker: its newest secret keys, by id."""

    def __init__(self) -> None:
        self._secrets: dict[bytes, ChunkSecret] = {}

    def key(self, data: Buffer, name: str) -> bytes:
        """Load a secret key; beyond KEPT keys, the oldest is dropped."""
        secret = ChunkSecret(profile(name), bytes(data))
        self._secrets[secret.id] = secret
        if len(self._secrets) > KEPT:
            del self._secrets[next(iter(self._secrets))]
        return b""

    def encrypt(self, data: Buffer, key_id: bytes, index: int) -> bytes:
        """Encrypt the steps of a chunk."""
        return self._secrets[key_id].encrypt(index, np.frombuffer(data, dtype=np.int64))

    def decrypt(self, data: Buffer, key_id: bytes, index: int, count: int) -> bytes:
        """Decrypt a chunk to its steps."""
        return self._secrets[key_id].decrypt(index, data, count).tobytes()


BENCHES: dict[str, type[Sums | Secrets]] = {"sums": Sums, "secrets": Secrets}


def write_frame(stream: BinaryIO, value: Any) -> None:
    """Send one message over a pipe."""
    body = msgspec.msgpack.encode(value)
    stream.write(len(body).to_bytes(4, "little") + body)
    stream.flush()


def read_frame(stream: BinaryIO) -> Any:
    """Receive one message; None at the end of the stream."""
    size = stream.read(4)
    if len(size) < 4:
        return None
    return msgspec.msgpack.decode(stream.read(int.from_bytes(size, "little")))


def serve(kind: str, descriptor: int, size: int) -> None:
    """Serve requests of one kind until standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    handler, arena = BENCHES[kind](), mmap.mmap(descriptor, size)
    requests, replies = sys.stdin.buffer, sys.stdout.buffer
    while (request := read_frame(requests)) is not None:
        operation, arguments, count = request
        try:
            result = getattr(handler, operation)(arena[:count], *arguments)
            arena[: len(result)] = result
            reply = ["", len(result)]
        except CryptoError as error:
            reply = [str(error), 0]
        except Exception as error:  # whatever it is, the parent must be told
            reply = [f"worker failed in {operation}: {type(error).__name__}: {error}", 0]
        write_frame(replies, reply)


if __name__ == "__main__":
    try:
        serve(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
    except BrokenPipeError:  # the parent was killed: nobody is left to reply to
        os._exit(0)  # without flushing the pipe once more
