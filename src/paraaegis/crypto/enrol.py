"""Enrolment over the network: the lead seals the federation's secrets to clients it has approved, the server relays.

A public key alone proves nothing, since it arrives through the server. So the lead seals only to keys whose
fingerprint it got from that client directly, and a client opens only what was sealed by a lead whose fingerprint it got
directly. The seal depends on both parties' long-term keys: neither the server nor another client can make or open one.
It also depends on a one-time key of the client, which is erased once the packet is opened: what a server recorded stays
unreadable, even to someone who later steals the long-term keys. The packet also contains the roster, by which clients
recognise each other from then on.
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
    """The fingerprint that two people compare over a channel the server does not control: 4f2a-…, 128 bits."""
    digits = hashlib.sha256(b"paraaegis identity" + public).hexdigest()[: 4 * _GROUPS]
    return "-".join(digits[4 * group : 4 * group + 4] for group in range(_GROUPS))


def key_id(keys: FederationKeys) -> str:
    """A public id of a line of roots and its roster; it does not change from run to run."""
    roster = msgspec.msgpack.encode([keys.root.line, sorted(keys.roster.items())])
    return hashlib.sha256(b"federation key id" + roster).hexdigest()[:32]


@dataclass(frozen=True)
class KeyRequest:
    """A client's request to the lead: its public key, a one-time key, its position in its line of roots, a proof."""

    public: bytes
    once: bytes
    line: bytes
    index: int
    proof: bytes

    @classmethod
    def make(cls, identity: tuple[bytes, bytes], once: bytes, held: Root | None, lead_public: bytes, lead: str) -> Self:
        """Build a request to this lead; refused if the lead's fingerprint is not the one this client was given."""
        check_lead(lead_public, lead)
        line, index = (held.line, held.index) if held else (b"", 0)
        return cls(identity[1], once, line, index, _proof(identity[0], lead_public, once, line, index))

    def check(self, lead_private: bytes, name: str) -> None:
        """Refuse, as the lead, a request that client `name` did not make."""
        if not hmac.compare_digest(self.proof, _proof(lead_private, self.public, self.once, self.line, self.index)):
            raise CryptoError(f"the one-time key received for {name} was not made by that client: nothing was sealed")


def seal_keys(keys: FederationKeys, lead_private: bytes, name: str, asking: KeyRequest) -> bytes:
    """Seal secrets and roster, as the lead, to client `name` of the roster; never a root that the client has erased."""
    root = keys.root
    if asking.line == root.line and asking.index > root.index:
        root = root.forward(asking.index)
    content = encode_keys(replace(keys, root=root))
    return seal(lead_private, keys.roster[name], content, _CONTEXT + name.encode(), once=asking.once)


def _proof(private: bytes, public: bytes, once: bytes, line: bytes, index: int) -> bytes:
    return tag(derive(agree(private, public), "enrolment"), once, line, index.to_bytes(8, "little"))


def check_approved(name: str, public: bytes, approved: str) -> None:
    """Refuse a public key other than the one approved for client `name`."""
    if not hmac.compare_digest(fingerprint_of(public), approved.strip().lower()):
        raise CryptoError(
            f"the key received for {name} has the fingerprint {fingerprint_of(public)}, but the approved one is "
            f"{approved or 'none'}: nothing was sealed; get the fingerprint from that client's staff, not the server"
        )


def check_lead(lead_public: bytes, lead: str) -> None:
    """Refuse a lead whose fingerprint is not the one this client was given."""
    if not hmac.compare_digest(fingerprint_of(lead_public), lead.strip().lower()):
        raise CryptoError(
            f"the lead that offers secrets has the fingerprint {fingerprint_of(lead_public)}, but this client was "
            f"given {lead or 'none'}: the secrets were not accepted"
        )


def open_keys(sealed: bytes, private: bytes, once: bytes, name: str, lead_public: bytes, lead: str) -> FederationKeys:
    """Open the secrets that the lead sealed to this client; refused if it is not the lead this client was given."""
    check_lead(lead_public, lead)
    opened = unseal(private, lead_public, sealed, _CONTEXT + name.encode(), once=once)
    return decode_keys(opened, "what the lead sealed")
