"""A lead, a silo and a server with their keys, and what they send each other to enrol."""

from paraaegis.crypto.enrol import KeyRequest, fingerprint_of, open_keys, seal_keys
from paraaegis.crypto.kdf import derive, tag
from paraaegis.crypto.keys import FederationKeys
from paraaegis.crypto.ratchet import Root
from paraaegis.crypto.sealed_box import new_pair

LEAD, SILO, SERVER, ONCE = new_pair(), new_pair(), new_pair(), new_pair()
ROSTER = {"client-0": LEAD[1], "client-1": SILO[1]}
SECRETS = FederationKeys(Root(bytes(range(32)), bytes(16), 4), epoch=2, roster=ROSTER)
CONTEXT = b"paraaegis-enrolment-2:client-1"


def asking(once=ONCE[1], held=None, lead=LEAD[1], told=None):
    return KeyRequest.make(SILO, once, held, lead, fingerprint_of(LEAD[1]) if told is None else told)


def proof_under(secret, once=ONCE[1]):
    return tag(derive(secret, "enrolment"), once, b"", bytes(8))


def sealed():
    return seal_keys(SECRETS, LEAD[0], "client-1", asking())


def opened(parcel, private=SILO[0], once=ONCE[0], name="client-1", lead_public=LEAD[1], lead=None):
    return open_keys(parcel, private, once, name, lead_public, lead or fingerprint_of(LEAD[1]))
