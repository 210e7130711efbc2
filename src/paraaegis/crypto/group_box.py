"""Messages that all clients of a run can read, and the server that relays them cannot: ChaCha20-Poly1305."""

from __future__ import annotations

import secrets

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from paraaegis.errors import CryptoError

_NONCE = 12
OVERHEAD = _NONCE + 16  # bytes that a sealed message is longer


def seal_for_all(key: bytes, content: bytes, context: bytes) -> bytes:
    """Seal `content` under a key that all clients have. It opens only with the same `context`."""
    nonce = secrets.token_bytes(_NONCE)
    return nonce + ChaCha20Poly1305(key).encrypt(nonce, content, context)


def open_for_all(key: bytes, sealed: bytes, context: bytes) -> bytes:
    """What `seal_for_all` sealed. One error for every fault."""
    try:
        return ChaCha20Poly1305(key).decrypt(sealed[:_NONCE], sealed[_NONCE:], context)
    except (InvalidTag, ValueError):
        raise CryptoError("sealed bytes do not open with this key and context") from None
