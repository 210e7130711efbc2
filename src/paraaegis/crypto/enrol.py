"""Enrolment without a courier: the lead silo seals the federation's secrets to silos it approved, a server relays.

A public key alone proves nothing, since it comes through the server. So the lead seals only to keys whose fingerprint
it was told by that silo itself, and a silo opens only what was sealed by a lead whose fingerprint it was told. The
seal depends on both parties' long-term keys: neither a server nor another silo can make or open one. It also depends on
a one-time key of the silo, erased when the packet is opened: what a server recorded stays closed, even to somebody who
later steals the long-term keys. With the secrets comes the roster, by which silos know each other from then on.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, replace
from typing import Self

import msgspec

from paraaegis.crypto.kdf import derive, tag
from paraaegis.crypto.keys import FederationKeys, decode_keys, encode_keys
from paraaegis.crypto.ratchet import Root
from paraaegis.crypto.sealed_box import agree, seal, unseal
from paraaegis.errors import CryptoError

_CONTEXT = b"paraaegis-enrolment-2:"
_GROUPS = 8  # of four hexadecimal digits: 128 bits


def fingerprint_of(public: bytes) -> str:
    """What two people compare over a channel that the server does not control: 4f2a-…, 128 bits."""
    digits = hashlib.sha256(b"paraaegis identity" + public).hexdigest()[: 4 * _GROUPS]
    return "-".join(digits[4 * group : 4 * group + 4] for group in range(_GROUPS))


def key_id(keys: FederationKeys) -> str:
    """A public name for a line of roots and its roster, equal wherever they are equal, however many runs there were."""
    roster = msgspec.msgpack.encode([keys.root.line, sorted(keys.roster.items())])
    return hashlib.sha256(b"federation key id" + roster).hexdigest()[:32]


@dataclass(frozen=True)
class KeyRequest:
    """What a silo asks the lead with: its public key, a one-time key, where it is in its line of roots, its proof."""

    public: bytes
    once: bytes
    line: bytes
    index: int
    proof: bytes

    @classmethod
    def make(cls, identity: tuple[bytes, bytes], once: bytes, held: Root | None, lead_public: bytes, lead: str) -> Self:
        """Ask this lead; refused if it is not the one that the silo was told of."""
        check_lead(lead_public, lead)
        line, index = (held.line, held.index) if held else (b"", 0)
        return cls(identity[1], once, line, index, _proof(identity[0], lead_public, once, line, index))

    def check(self, lead_private: bytes, name: str) -> None:
        """Refuse, as the lead, what the silo `name` did not ask."""
        if not hmac.compare_digest(self.proof, _proof(lead_private, self.public, self.once, self.line, self.index)):
            raise CryptoError(f"the one-time key received for {name} was not made by that silo: nothing was sealed")


def seal_keys(keys: FederationKeys, lead_private: bytes, name: str, asking: KeyRequest) -> bytes:
    """Secrets and roster, sealed by the lead to the silo `name` of the roster: no root that it has erased."""
    root = keys.root
    if asking.line == root.line and asking.index > root.index:
        root = root.forward(asking.index)
    content = encode_keys(replace(keys, root=root))
    return seal(lead_private, keys.roster[name], content, _CONTEXT + name.encode(), once=asking.once)


def _proof(private: bytes, public: bytes, once: bytes, line: bytes, index: int) -> bytes:
    return tag(derive(agree(private, public), "enrolment"), once, line, index.to_bytes(8, "little"))


def check_approved(name: str, public: bytes, approved: str) -> None:
    """Refuse a public key that is not the one which was approved for the silo `name`."""
    if not hmac.compare_digest(fingerprint_of(public), approved.strip().lower()):
        raise CryptoError(
            f"the key received for {name} has the fingerprint {fingerprint_of(public)}, approved is "
            f"{approved or 'none'}: nothing was sealed; ask that silo's people for its fingerprint, not the server"
        )


def check_lead(lead_public: bytes, lead: str) -> None:
    """Refuse a lead that is not the one whose fingerprint this silo was told."""
    if not hmac.compare_digest(fingerprint_of(lead_public), lead.strip().lower()):
        raise CryptoError(
            f"a lead with the fingerprint {fingerprint_of(lead_public)} offers secrets, this silo was told "
            f"{lead or 'none'}: they were not taken"
        )


def open_keys(sealed: bytes, private: bytes, once: bytes, name: str, lead_public: bytes, lead: str) -> FederationKeys:
    """The secrets that the lead sealed to this silo; refused if the lead is not the one it was told of."""
    check_lead(lead_public, lead)
    opened = unseal(private, lead_public, sealed, _CONTEXT + name.encode(), once=once)
    return decode_keys(opened, "what the lead sealed")
