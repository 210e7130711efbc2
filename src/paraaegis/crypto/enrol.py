"""Enrolment without a courier: the lead silo seals the federation's secrets to silos it approved, a server relays.

A public key alone proves nothing, since it comes through the server. So the lead seals only to keys whose fingerprint
it was told by that silo itself, and a silo opens only what was sealed by a lead whose fingerprint it was told. The
seal depends on both parties' long-term keys: neither a server nor another silo can make or open one.
"""

from __future__ import annotations

import hashlib
import hmac

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from paraaegis.crypto.keys import FederationKeys, decode_keys, encode_keys, tag
from paraaegis.crypto.sealing import seal, unseal
from paraaegis.errors import CryptoError, KeyFileError

_CONTEXT = b"paraaegis-enrolment-1:"
_GROUPS = 8  # of four hexadecimal digits: 128 bits


def fingerprint_of(public: bytes) -> str:
    """What two people compare over a channel that the server does not control: 4f2a-…, 128 bits."""
    digits = hashlib.sha256(b"paraaegis identity" + public).hexdigest()[: 4 * _GROUPS]
    return "-".join(digits[4 * group : 4 * group + 4] for group in range(_GROUPS))


def key_id(keys: FederationKeys) -> str:
    """A public name for a federation's secrets, equal wherever they are equal."""
    return tag(keys.vote, b"federation key id", keys.ckks_id, keys.profile.encode()).hex()


def seal_keys(keys: FederationKeys, lead_private: bytes, name: str, public: bytes, approved: str) -> bytes:
    """The secrets, sealed by the lead to the silo `name`, if its key is the one that was approved."""
    if not hmac.compare_digest(fingerprint_of(public), approved.strip().lower()):
        raise CryptoError(
            f"the key that came for {name} has the fingerprint {fingerprint_of(public)}, approved is "
            f"{approved or 'none'}: nothing was sealed; ask that silo's people for its fingerprint, not the server"
        )
    return seal(public, encode_keys(keys), _CONTEXT + name.encode(), group=_shared(lead_private, public))


def open_keys(sealed: bytes, private: bytes, name: str, lead_public: bytes, lead: str) -> FederationKeys:
    """The secrets that the lead sealed to this silo; refused if the lead is not the one it was told of."""
    if not hmac.compare_digest(fingerprint_of(lead_public), lead.strip().lower()):
        raise CryptoError(
            f"these secrets claim a lead with the fingerprint {fingerprint_of(lead_public)}, this silo was told "
            f"{lead or 'none'}: they were not opened"
        )
    content = unseal(private, sealed, _CONTEXT + name.encode(), group=_shared(private, lead_public))
    return decode_keys(content, "what the lead sealed")


def _shared(private: bytes, public: bytes) -> bytes:
    """The secret of two long-term keys, which only their owners can compute."""
    try:
        return X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        raise KeyFileError("not a pair of X25519 keys") from None
