"""Bytes sealed to one receiver, to be carried by a server that must neither read nor change them.

    ephemeral X25519 pair → shared secret → HKDF-SHA256 (group, both public keys, context) → ChaCha20-Poly1305

`context` names run, round, attempt, sender and receiver; sealed bytes open under the same context only.
A public key alone proves no sender: a server could seal shares of its own making, or hand out its own keys.
`group`, a secret that the clients share and the server lacks (derived from the vote key, say), prevents both.
"""

from __future__ import annotations

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from paraaegis.errors import CryptoError

KEY_BYTES = 32
_NONCE = bytes(12)  # every key seals one message, so one nonce is enough
_PURPOSE = b"paraaegis-seal-1"


def new_pair() -> tuple[bytes, bytes]:
    """Make a fresh private key and its public key, 32 bytes each."""
    private = X25519PrivateKey.generate()
    return private.private_bytes_raw(), private.public_key().public_bytes_raw()


def public_of(private: bytes) -> bytes:
    """The public key of a private one."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def seal(receiver_public: bytes, plaintext: bytes, context: bytes, *, group: bytes = b"") -> bytes:
    """Seal `plaintext` to the holder of the private key of `receiver_public`; 48 bytes longer."""
    ephemeral = X25519PrivateKey.generate()
    public = ephemeral.public_key().public_bytes_raw()
    try:
        shared = ephemeral.exchange(X25519PublicKey.from_public_bytes(receiver_public))
    except ValueError:
        raise CryptoError(f"not an X25519 public key of {KEY_BYTES} bytes: nothing was sealed") from None
    return public + _cipher(shared, group, public, receiver_public, context).encrypt(_NONCE, plaintext, context)


def unseal(private: bytes, sealed: bytes, context: bytes, *, group: bytes = b"") -> bytes:
    """Return what was sealed for this key, context and group; one error for all that can be wrong."""
    try:
        key = X25519PrivateKey.from_private_bytes(private)
        public = sealed[:KEY_BYTES]
        shared = key.exchange(X25519PublicKey.from_public_bytes(public))
        cipher = _cipher(shared, group, public, key.public_key().public_bytes_raw(), context)
        return cipher.decrypt(_NONCE, sealed[KEY_BYTES:], context)
    except (InvalidTag, ValueError):
        raise CryptoError("sealed bytes do not open with this key and context") from None


def _cipher(shared: bytes, group: bytes, sender: bytes, receiver: bytes, context: bytes) -> ChaCha20Poly1305:
    # The two keys have a fixed length, so the parts of `info` cannot run into each other.
    info = _PURPOSE + sender + receiver + context
    return ChaCha20Poly1305(HKDF(algorithm=SHA256(), length=32, salt=group, info=info).derive(shared))
