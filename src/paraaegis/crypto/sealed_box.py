"""Messages sealed by one client for another, relayed by a server that must neither read nor change them.

    ephemeral DH ‖ static DH [‖ one-time DH] → HKDF-SHA256 (group; the public keys, context) → ChaCha20-Poly1305

The ephemeral key is fresh for each message. The static part comes from the long-term keys of sender and receiver, so
only these two can make or open the message: the receiver knows who sent it. `once` is a key pair that the receiver made
for one message: once its private key is erased nobody can open the message, not even with both long-term keys. `group`,
a secret of all clients, keeps out anyone with a client's long-term key but not the federation's secrets. `context`
names the message's purpose; it opens only in the same context.

HPKE (RFC 9180) with a post-quantum hybrid could replace only the ephemeral part: the library's HPKE does not
authenticate the sender, which is what the static part is for.
"""

from __future__ import annotations

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from paraaegis.errors import CryptoError

KEY_BYTES = 32
OVERHEAD = KEY_BYTES + 16  # bytes that a sealed message is longer
_NONCE = bytes(12)  # every key seals one message, so one nonce is enough
_PURPOSE = b"paraaegis-seal-3"


def new_pair() -> tuple[bytes, bytes]:
    """Make a fresh private key and its public key, 32 bytes each."""
    private = X25519PrivateKey.generate()
    return private.private_bytes_raw(), private.public_key().public_bytes_raw()


def public_of(private: bytes) -> bytes:
    """The public key of a private key."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def agree(private: bytes, public: bytes) -> bytes:
    """The X25519 secret of two keys, which only their owners can compute."""
    try:
        return X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        raise CryptoError(f"not a pair of X25519 keys of {KEY_BYTES} bytes") from None


def seal(
    sender: bytes, receiver: bytes, plaintext: bytes, context: bytes, *, group: bytes = b"", once: bytes = b""
) -> bytes:
    """Seal `plaintext` from the private key `sender` to the public key `receiver`. The result is `OVERHEAD` longer.

    `once`: a one-time public key that it is also sealed to.
    """
    ephemeral, public = new_pair()
    secret = agree(ephemeral, receiver) + agree(sender, receiver) + (agree(ephemeral, once) if once else b"")
    info = _PURPOSE + public + public_of(sender) + receiver + (once or bytes(KEY_BYTES)) + context
    return public + _cipher(secret, group, info).encrypt(_NONCE, plaintext, context)


def unseal(
    receiver: bytes, sender: bytes, sealed: bytes, context: bytes, *, group: bytes = b"", once: bytes = b""
) -> bytes:
    """Open, with the private key `receiver`, what the owner of public key `sender` sealed. One error for every fault.

    `once`: the private key of the one-time pair that it was also sealed to.
    """
    public = sealed[:KEY_BYTES]
    try:
        secret = agree(receiver, public) + agree(receiver, sender) + (agree(once, public) if once else b"")
        own = public_of(receiver) + (public_of(once) if once else bytes(KEY_BYTES))
        info = _PURPOSE + public + sender + own + context
        return _cipher(secret, group, info).decrypt(_NONCE, sealed[KEY_BYTES:], context)
    except (CryptoError, InvalidTag, ValueError):
        raise CryptoError("sealed bytes do not open with these keys and this context") from None


def _cipher(secret: bytes, group: bytes, info: bytes) -> ChaCha20Poly1305:
    # The purpose and the four keys in `info` have fixed lengths, so its encoding is unambiguous.
    return ChaCha20Poly1305(HKDF(algorithm=SHA256(), length=32, salt=group, info=info).derive(secret))
