"""Folders of an older version are refused, with a way out that works."""

import msgspec
import pytest

from key_folders import call, federation, handed_out, parcels_for
from paraaegis.crypto.keys import load_keys, write_secret
from paraaegis.errors import CryptoError, KeyFileError


def retire(folder, epoch=5):
    """Put keys of an older version into a folder, with the roster that lies there."""
    old = {"kind": "paraaegis-federation-keys-1", "profile": "precise", "vote": bytes(32), "ckks": b"secret"}
    write_secret(folder.keys, msgspec.msgpack.encode({**old, "epoch": epoch, "roster": load_keys(folder.keys).roster}))


def test_a_folder_of_an_older_version_is_refused_with_the_command_that_helps_and_that_command_works(
    monkeypatch, capsys, tmp_path
):
    lead, silos = federation(tmp_path)
    handed_out(lead, silos)
    roster = load_keys(lead.keys).roster
    for folder in (lead, *silos.values()):
        retire(folder)
    code, text = call(monkeypatch, capsys, "show", lead.path)
    assert (code, "the lead can make new ones with `paraaegis keys rotate`" in text) == (0, True)
    with pytest.raises(KeyFileError, match="older version"):
        parcels_for(lead, silos)
    assert {folder.key_id for folder in (lead, *silos.values())} == {""}
    assert call(monkeypatch, capsys, "rotate", lead.path)[0] == 0
    after = load_keys(lead.keys)
    assert (after.epoch, after.roster, after.root.index) == (6, roster, 0)
    handed_out(lead, silos)
    for silo in silos.values():
        assert load_keys(silo.keys) == after
    assert b"secret" not in b"".join(folder.keys.read_bytes() for folder in (lead, *silos.values()))


def test_a_silo_takes_over_from_a_lead_of_an_older_version(tmp_path):
    lead, silos = federation(tmp_path)
    handed_out(lead, silos)
    new, other = silos["client-1"], silos["client-2"]
    retire(new)
    retire(other)
    other.create(new.approve({"client-2": other.create()}, take_over=True))
    assert load_keys(new.keys).epoch == 6
    handed_out(new, {"client-2": other})
    assert load_keys(other.keys) == load_keys(new.keys)


def test_a_silo_that_leaves_takes_nothing_of_an_older_version_along(tmp_path):
    lead, silos = federation(tmp_path)
    handed_out(lead, silos)
    retire(lead)
    lead.rotate("client-2")
    assert set(load_keys(lead.keys).roster) == {"client-0", "client-1"}
    with pytest.raises(CryptoError, match="approved one is none"):
        parcels_for(lead, silos)
