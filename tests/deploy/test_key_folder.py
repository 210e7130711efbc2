"""Each silo ends with the lead's secrets in files of its own, and with everyone's public key."""

from dataclasses import replace

import pytest

from key_folders import SILOS, asked, federation, handed_out
from packets import CONTEXT, SILO
from paraaegis.config import numbered
from paraaegis.crypto.keys import encode_keys, load_identity, load_keys
from paraaegis.crypto.sealed_box import seal
from paraaegis.deploy.key_folder import KeyFolder, deal_keys
from paraaegis.errors import KeyFileError


def test_silos_end_with_the_leads_secrets_in_files_of_their_own(tmp_path):
    lead, silos = federation(tmp_path)
    handed_out(lead, silos)
    for silo in silos.values():
        assert load_keys(silo.keys) == load_keys(lead.keys)
        assert {path.stat().st_mode & 0o777 for path in (silo.keys, silo.identity)} == {0o600}
        assert not silo.once.exists()


def test_a_fingerprint_belongs_to_one_silo_and_a_silo_leads_or_follows(tmp_path):
    lead, silos = federation(tmp_path)
    with pytest.raises(KeyFileError, match="client-1 and client-3 cannot have the same fingerprint"):
        lead.approve({"client-3": lead.approved()["client-1"]})
    assert set(lead.approved()) == {"client-1", "client-2"}
    with pytest.raises(KeyFileError, match="it cannot be a lead itself"):
        silos["client-1"].approve({})
    assert not silos["client-1"].leads


def test_dealt_keys_hold_what_each_silo_needs_and_the_server_nothing_secret(tmp_path):
    *silos, server = deal_keys(tmp_path, SILOS)
    secrets = [load_keys(silo / "keys") for silo in silos]
    assert secrets[0] == secrets[1] == secrets[2]
    assert len({(silo / "identity").read_bytes() for silo in silos}) == 3
    public = (server / "public.toml").read_bytes()
    assert secrets[0].root.secret not in public
    assert secrets[0].root.secret.hex().encode() not in public
    assert sorted(path.name for path in server.iterdir()) == ["public.toml"]
    with pytest.raises(KeyFileError, match="never overwritten"):
        deal_keys(tmp_path, SILOS)


def test_dealt_keys_come_with_everyones_identity(tmp_path):
    folders = deal_keys(tmp_path / "dealt", SILOS)[:-1]
    for folder in folders:
        roster = load_keys(folder / "keys").roster
        assert roster == {path.name: KeyFolder(path).public for path in folders}


def test_keys_are_not_dealt_without_end(tmp_path):
    with pytest.raises(KeyFileError, match="at most 1000 silos"):
        deal_keys(tmp_path, numbered(1001))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("wrong", ["garbage", "4f2a", "4f2a-4f2a-4f2a-4f2a-4f2a-4f2a-4f2a-4f2g"])
def test_what_is_no_fingerprint_is_refused(tmp_path, wrong):
    with pytest.raises(KeyFileError, match="eight groups"):
        KeyFolder(tmp_path / "lead").approve({"client-1": wrong})
    with pytest.raises(KeyFileError, match="eight groups"):
        KeyFolder(tmp_path / "silo").create(wrong)


def test_files_of_a_folder_may_begin_with_a_byte_order_mark(tmp_path):
    lead, silos = federation(tmp_path)
    for path in (lead.path / "approved.toml", silos["client-1"].path / "lead.toml"):
        path.write_text(path.read_text(), encoding="utf-8-sig")
    assert set(lead.approved()) == {"client-1", "client-2"}
    assert silos["client-1"].lead == lead.create()


def test_a_silo_that_joins_or_has_a_new_identity_is_a_new_roster_for_all(tmp_path):
    lead, silos = federation(tmp_path)
    handed_out(lead, silos)
    before = load_keys(lead.keys)
    handed_out(lead, silos)
    assert load_keys(lead.keys) == before  # nothing new, nothing changed
    third = KeyFolder(tmp_path / "client-3")
    lead.approve({"client-3": third.create(lead.create())})
    handed_out(lead, {**silos, "client-3": third})
    after = load_keys(lead.keys)
    assert (after.root, after.epoch) == (before.root, before.epoch + 1)
    assert set(after.roster) == {"client-0", "client-1", "client-2", "client-3"}
    assert {silo.key_id for silo in (*silos.values(), third)} == {lead.key_id}


def test_a_roster_with_another_key_for_this_silo_is_refused(tmp_path):
    lead, silos = federation(tmp_path)
    request = asked(silos["client-1"], lead)
    parcel = lead.seal({"client-1": request}, "client-0")["client-1"]
    keys = load_keys(lead.keys)
    lying = replace(keys, roster={**keys.roster, "client-1": SILO[1]})
    private = load_identity(lead.identity)[0]
    forged = seal(private, silos["client-1"].public, encode_keys(lying), CONTEXT, once=request.once)
    with pytest.raises(KeyFileError, match="a different key for client-1"):
        silos["client-1"].open(forged, "client-1", lead.public)
    silos["client-1"].open(parcel, "client-1", lead.public)
