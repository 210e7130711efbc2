"""Enrolment without a courier: the lead silo seals the federation's secrets to silos it approved, a server relays.

A public key alone proves nothing, since it comes through the server. So the lead seals only to keys whose fingerprint
it was told by that silo itself, and a silo opens only what was sealed by a lead whose fingerprint it was told. The
seal depends on both parties' long-term keys: neither a server nor another silo can make or open one. With the secrets
comes the roster, by which silos know each other from then on.
"""

from __future__ import annotations

import hashlib
import hmac

import msgspec

from paraaegis.crypto.keys import FederationKeys, decode_keys, encode_keys, tag
from paraaegis.crypto.sealing import seal, unseal
from paraaegis.errors import CryptoError

_CONTEXT = b"paraaegis-enrolment-1:"
_GROUPS = 8  # of four hexadecimal digits: 128 bits


def fingerprint_of(public: bytes) -> str:
    """What two people compare over a channel that the server does not control: 4f2a-…, 128 bits."""
    digits = hashlib.sha256(b"paraaegis identity" + public).hexdigest()[: 4 * _GROUPS]
    return "-".join(digits[4 * group : 4 * group + 4] for group in range(_GROUPS))


def key_id(keys: FederationKeys) -> str:
    """A public name for a federation's secrets and roster, equal wherever they are equal."""
    roster = msgspec.msgpack.encode(sorted(keys.roster.items()))
    return tag(keys.vote, b"federation key id", keys.ckks_id, keys.profile.encode(), roster).hex()


def seal_keys(keys: FederationKeys, lead_private: bytes, name: str) -> bytes:
    """Secrets and roster, sealed by the lead to the silo `name` of the roster."""
    return seal(lead_private, keys.roster[name], encode_keys(keys), _CONTEXT + name.encode())


def check_approved(name: str, public: bytes, approved: str) -> None:
    """Refuse a public key that is not the one which was approved for the silo `name`."""
    if not hmac.compare_digest(fingerprint_of(public), approved.strip().lower()):
        raise CryptoError(
            f"the key received for {name} has the fingerprint {fingerprint_of(public)}, approved is "
            f"{approved or 'none'}: nothing was sealed; ask that silo's people for its fingerprint, not the server"
        )


def open_keys(sealed: bytes, private: bytes, name: str, lead_public: bytes, lead: str) -> FederationKeys:
    """The secrets that the lead sealed to this silo; refused if the lead is not the one it was told of."""
    if not hmac.compare_digest(fingerprint_of(lead_public), lead.strip().lower()):
        raise CryptoError(
            f"these secrets claim a lead with the fingerprint {fingerprint_of(lead_public)}, this silo was told "
            f"{lead or 'none'}: they were not opened"
        )
    return decode_keys(unseal(private, lead_public, sealed, _CONTEXT + name.encode()), "what the lead sealed")
