"""Secrets reach approved silos and nobody else, though a server that nobody trusts carries them."""

from dataclasses import replace

import pytest

from packets import CONTEXT, LEAD, ONCE, ROSTER, SECRETS, SERVER, SILO, asking, opened, proof_under, sealed
from paraaegis.crypto.enrol import check_approved, fingerprint_of, key_id, seal_keys
from paraaegis.crypto.keys import encode_keys
from paraaegis.crypto.ratchet import Root
from paraaegis.crypto.sealed_box import agree, new_pair, seal, unseal
from paraaegis.errors import CryptoError


def test_what_the_lead_sealed_opens_at_the_silo_it_was_sealed_to():
    assert opened(sealed()) == SECRETS


def test_a_key_that_was_not_approved_is_refused():
    check_approved("client-1", SILO[1], fingerprint_of(SILO[1]))
    for approved in (fingerprint_of(LEAD[1]), ""):
        with pytest.raises(CryptoError, match="nothing was sealed"):
            check_approved("client-1", SILO[1], approved)


def test_a_server_that_seals_secrets_of_its_own_is_refused():
    forged = seal(SERVER[0], SILO[1], encode_keys(SECRETS), CONTEXT, once=ONCE[1])
    with pytest.raises(CryptoError, match="were not accepted"):  # it shows its own key
        opened(forged, lead_public=SERVER[1])
    with pytest.raises(CryptoError, match="do not open"):  # it shows the lead's
        opened(forged)


@pytest.mark.parametrize(
    "wrong", [{"private": SERVER[0]}, {"name": "client-2"}, {"private": LEAD[0]}, {"once": SERVER[0]}]
)
def test_a_parcel_opens_for_nobody_else(wrong):
    with pytest.raises(CryptoError):
        opened(sealed(), **wrong)


def test_a_parcel_that_was_changed_does_not_open():
    parcel = bytearray(sealed())
    parcel[-1] ^= 1
    with pytest.raises(CryptoError):
        opened(bytes(parcel))


def test_fingerprints_and_key_ids_differ_and_tell_no_secret():
    prints = {fingerprint_of(new_pair()[1]) for _ in range(50)}
    assert len(prints) == 50
    assert all(len(one) == 39 for one in prints)
    assert key_id(SECRETS) != key_id(replace(SECRETS, root=Root.new()))
    assert key_id(SECRETS) != key_id(replace(SECRETS, roster={**ROSTER, "client-1": SERVER[1]}))
    assert SECRETS.root.secret.hex()[:8] not in key_id(SECRETS)


def test_a_key_id_names_a_line_and_a_roster_however_many_runs_there_were():
    """Silos that missed some runs are not enrolled again, and a server learns nothing from a name that stays."""
    assert key_id(SECRETS) == key_id(replace(SECRETS, root=SECRETS.root.forward(9)))
    assert key_id(SECRETS) == key_id(replace(SECRETS, root=replace(SECRETS.root, secret=bytes(32))))
    assert key_id(SECRETS) == key_id(replace(SECRETS, roster=dict(reversed(ROSTER.items()))))


# The one-time key


@pytest.mark.parametrize(
    "once", [b"", new_pair()[0], SILO[0], LEAD[0], SERVER[0]], ids=["none", "fresh", "silo", "lead", "server"]
)
def test_with_both_long_term_keys_and_no_one_time_key_a_recorded_packet_stays_closed(once):
    parcel = sealed()
    for receiver, sender in ((SILO[0], LEAD[1]), (LEAD[0], SILO[1])):
        with pytest.raises(CryptoError, match="do not open"):
            unseal(receiver, sender, parcel, CONTEXT, once=once)
    assert unseal(SILO[0], LEAD[1], parcel, CONTEXT, once=ONCE[0]) == encode_keys(SECRETS)


FALSE_PROOFS = {
    "none": b"",
    "of another one-time key": asking(once=SERVER[1]).proof,
    "of an earlier root": asking(held=SECRETS.root).proof,
    "by the server": proof_under(agree(SERVER[0], LEAD[1])),
    "by the server with the silo": proof_under(agree(SERVER[0], SILO[1])),
    "cut": asking().proof[:-1],
    "by no key": proof_under(bytes(32)),
}


@pytest.mark.parametrize("false", FALSE_PROOFS.values(), ids=FALSE_PROOFS)
def test_a_one_time_key_that_the_silo_did_not_prove_is_refused(false):
    with pytest.raises(CryptoError, match="received for client-1 was not made by that client: nothing was sealed"):
        replace(asking(), proof=false).check(LEAD[0], "client-1")
    asking().check(LEAD[0], "client-1")
    assert asking().proof == proof_under(agree(SILO[0], LEAD[1]))


@pytest.mark.parametrize(("index", "sealed_index"), [(0, 4), (4, 4), (9, 9)])
def test_no_root_is_sealed_that_the_silo_has_erased(index, sealed_index):
    """A lead that was left out of runs is behind the silos that were in them."""
    held = Root(bytes(32), SECRETS.root.line, index)
    taken = opened(seal_keys(SECRETS, LEAD[0], "client-1", asking(held=held)))
    assert taken.root == SECRETS.root.forward(sealed_index)
    other = opened(seal_keys(SECRETS, LEAD[0], "client-1", asking(held=replace(held, line=b"another"))))
    assert other == SECRETS


def test_a_silo_proves_nothing_to_a_lead_that_it_was_not_told_of():
    with pytest.raises(CryptoError, match="this client was given none"):
        asking(lead=SERVER[1], told="")
    with pytest.raises(CryptoError, match="were not accepted"):
        asking(lead=SERVER[1])
