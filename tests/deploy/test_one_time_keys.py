"""A packet opens once, with a one-time key that its silo made and then erased."""

from dataclasses import replace

import pytest

from key_folders import asked, federation, handed_out, parcels_for
from packets import CONTEXT, SERVER, proof_under
from paraaegis.crypto.keys import load_keys
from paraaegis.crypto.sealed_box import agree, unseal
from paraaegis.deploy import key_folder as enrolment
from paraaegis.errors import CryptoError, KeyFileError


def test_a_recorded_packet_opens_once(tmp_path):
    lead, silos = federation(tmp_path)
    silo = silos["client-1"]
    parcel = parcels_for(lead, {"client-1": silo})["client-1"]
    once = silo.once.read_bytes()
    silo.open(parcel, "client-1", lead.public)
    before = silo.keys.read_bytes()
    with pytest.raises(
        KeyFileError, match="did not ask for secrets, or has already received them; nothing was changed"
    ):
        silo.open(parcel, "client-1", lead.public)
    silo.ask(lead.public)
    with pytest.raises(CryptoError, match="do not open"):
        silo.open(parcel, "client-1", lead.public)
    assert silo.keys.read_bytes() == before
    assert all(once not in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


def test_who_steals_both_folders_later_does_not_open_a_recorded_packet(tmp_path):
    lead, silos = federation(tmp_path)
    silo = silos["client-1"]
    parcel = parcels_for(lead, {"client-1": silo})["client-1"]
    silo.open(parcel, "client-1", lead.public)
    stolen = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    stolen = [b"", *(content for content in stolen if len(content) == 32)]
    assert len(stolen) == 4  # three identities and nothing else that is a key by itself
    for receiver in stolen[1:]:
        for once in stolen:
            for sender in (lead.public, silo.public):
                with pytest.raises(CryptoError, match="do not open"):
                    unseal(receiver, sender, parcel, CONTEXT, once=once)


def test_a_silo_that_asks_again_opens_what_is_sealed_to_its_last_key_alone(tmp_path):
    lead, silos = federation(tmp_path)
    silo = silos["client-1"]
    first = parcels_for(lead, {"client-1": silo})["client-1"]
    second = parcels_for(lead, {"client-1": silo})["client-1"]
    with pytest.raises(CryptoError, match="do not open"):
        silo.open(first, "client-1", lead.public)
    silo.open(second, "client-1", lead.public)
    assert load_keys(silo.keys) == load_keys(lead.keys)


def test_a_one_time_key_is_fresh_and_its_owners_alone(tmp_path):
    lead, silos = federation(tmp_path)
    silo = silos["client-1"]
    assert len({silo.ask(lead.public) for _ in range(5)}) == 5
    assert silo.once.stat().st_mode & 0o777 == 0o600


def test_a_silo_asks_nothing_of_a_lead_that_it_was_not_told_of(tmp_path):
    _, silos = federation(tmp_path)
    with pytest.raises(CryptoError, match="were not accepted"):
        silos["client-1"].ask(SERVER[1])
    assert not silos["client-1"].once.exists()


@pytest.mark.parametrize("given", ["its own", "another silo's", "an earlier proof"])
def test_a_server_cannot_have_secrets_sealed_to_a_one_time_key_of_its_choice(tmp_path, given):
    lead, silos = federation(tmp_path)
    true, other = (asked(silos[name], lead) for name in ("client-1", "client-2"))
    under = proof_under(agree(SERVER[0], true.public), SERVER[1])
    false = {
        "its own": replace(true, once=SERVER[1], proof=under),
        "another silo's": replace(other, public=true.public),
        "an earlier proof": replace(true, once=SERVER[1]),
    }[given]
    with pytest.raises(CryptoError, match="received for client-1 was not made by that client"):
        lead.seal({"client-1": false}, "client-0")
    assert lead.seal({"client-1": true}, "client-0").keys() == {"client-1"}


@pytest.mark.parametrize("fault", ["noise", "cut", "the lead's of another name"])
def test_a_packet_that_does_not_open_leaves_the_one_time_key_for_the_one_that_does(tmp_path, fault):
    """Else a server, or the network, could lock a silo out by a byte."""
    lead, silos = federation(tmp_path)
    silo = silos["client-1"]
    parcels = parcels_for(lead, silos)
    wrong = {"noise": bytes(200), "cut": parcels["client-1"][:-1], "the lead's of another name": parcels["client-2"]}
    with pytest.raises(CryptoError, match="do not open"):
        silo.open(wrong[fault], "client-1", lead.public)
    silo.open(parcels["client-1"], "client-1", lead.public)
    assert silo.key_id == lead.key_id


def test_a_silo_that_was_killed_while_it_opened_asks_again(tmp_path, monkeypatch):
    lead, silos = federation(tmp_path)
    handed_out(lead, silos)
    lead.rotate()
    silo = silos["client-1"]
    before = silo.keys.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(enrolment, "save_keys", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            handed_out(lead, {"client-1": silo})
    assert silo.keys.read_bytes() == before
    assert not silo.once.exists()
    assert silo.key_id != lead.key_id  # by which the server knows that it is to be enrolled
    handed_out(lead, {"client-1": silo})
    assert load_keys(silo.keys) == load_keys(lead.keys)
