"""Silos leave and leads change: who is approved gets new secrets, and nobody takes old ones."""

import pytest

from key_folders import federation, handed_out, outdated, parcels_for
from paraaegis.crypto.keys import load_keys
from paraaegis.deploy.key_folder import KeyFolder
from paraaegis.errors import CryptoError, KeyFileError


def test_when_a_silo_leaves_the_others_get_new_secrets_and_it_gets_none(tmp_path):
    lead, silos = federation(tmp_path)
    handed_out(lead, silos)
    before = lead.key_id
    assert lead.rotate("client-2") == lead.key_id != before
    with pytest.raises(CryptoError, match="approved one is none"):
        parcels_for(lead, {"client-2": silos["client-2"]})
    stayed = {"client-1": silos["client-1"]}
    handed_out(lead, stayed)
    assert stayed["client-1"].key_id == lead.key_id != silos["client-2"].key_id
    with pytest.raises(KeyFileError, match="has not approved 'client-9'; it has approved client-1"):
        lead.rotate("client-9")


def test_when_the_lead_leaves_another_takes_over_with_secrets_that_it_does_not_know(tmp_path):
    old, silos = federation(tmp_path)
    handed_out(old, silos)
    new, other = silos["client-1"], silos["client-2"]
    told = new.approve({"client-2": other.create()}, take_over=True)
    assert new.leads
    assert new.lead == ""
    with pytest.raises(CryptoError, match="the secrets were not accepted"):
        handed_out(new, {"client-2": other})  # it was not told yet
    other.create(told)
    handed_out(new, {"client-2": other})
    assert load_keys(other.keys) == load_keys(new.keys)
    assert load_keys(new.keys).root.secret != load_keys(old.keys).root.secret
    assert load_keys(new.keys).root.line != load_keys(old.keys).root.line
    with pytest.raises(CryptoError, match="the secrets were not accepted"):
        handed_out(old, {"client-2": other})
    with pytest.raises(KeyFileError, match="omit --take-over"):
        new.approve({}, take_over=True)


def test_secrets_of_a_new_lead_are_taken_whatever_their_epoch_and_only_once(tmp_path):
    old, silos = federation(tmp_path)
    new, other = silos["client-1"], silos["client-2"]
    handed_out(old, {"client-2": other})  # the new lead never got any
    other.create(new.approve({"client-2": other.create()}, take_over=True))
    handed_out(new, {"client-2": other})
    assert other.key_id == new.key_id
    before = new.keys.read_bytes()
    new.approve({"client-3": KeyFolder(tmp_path / "client-3").create()})
    new.rotate("client-3")
    handed_out(new, {"client-2": other})
    early = outdated(new, before, other)
    with pytest.raises(KeyFileError, match="handing out old ones again"):
        other.open(early, "client-2", new.public)
    assert other.key_id == new.key_id


def test_old_secrets_stay_refused_though_another_led_in_between(tmp_path):
    first, silos = federation(tmp_path)
    second, other = silos["client-1"], silos["client-2"]
    handed_out(first, {"client-2": other})
    before = first.keys.read_bytes()
    first.rotate()
    handed_out(first, {"client-2": other})
    other.create(second.approve({"client-2": other.create()}, take_over=True))
    handed_out(second, {"client-2": other})
    other.create(first.create())
    early = outdated(first, before, other)
    with pytest.raises(KeyFileError, match="secrets of epoch 2, but this silo has already had epoch 3 from its lead"):
        other.open(early, "client-2", first.public)
    assert other.key_id == second.key_id
    handed_out(first, {"client-2": other})
    assert other.key_id == first.key_id


def test_a_folder_of_before_leads_were_written_down_refuses_old_secrets_and_takes_a_new_leads(tmp_path):
    first, silos = federation(tmp_path)
    second, other = silos["client-1"], silos["client-2"]
    handed_out(first, {"client-2": other})
    before = first.keys.read_bytes()
    for _ in range(2):
        first.rotate()
    handed_out(first, {"client-2": other})
    (other.path / "lead.toml").write_text(f'lead = "{first.create()}"\n')
    early = outdated(first, before, other)
    with pytest.raises(KeyFileError, match="epoch 2, but this silo has already had epoch 4"):
        other.open(early, "client-2", first.public)
    other.create(second.approve({"client-2": other.create()}, take_over=True))
    handed_out(second, {"client-2": other})
    assert other.key_id == second.key_id


def test_only_a_lead_makes_new_secrets(tmp_path):
    lead, silos = federation(tmp_path)
    handed_out(lead, silos)
    before = load_keys(lead.keys)
    lead.approve({"client-3": KeyFolder(tmp_path / "client-3").create()})  # with secrets that lie there already
    assert load_keys(lead.keys) == before
    lead.rotate()
    after = load_keys(lead.keys)
    assert (after.epoch, after.roster, after.root.index) == (before.epoch + 1, before.roster, 0)
    assert len({before.root.secret, after.root.secret}) == len({before.root.line, after.root.line}) == 2
    with pytest.raises(KeyFileError, match=r"is not the lead.* deliver new ones with `paraaegis keys new`"):
        silos["client-2"].rotate()


def test_a_silo_that_took_over_in_part_still_follows(tmp_path, monkeypatch):
    old, silos = federation(tmp_path)
    handed_out(old, silos)
    new = silos["client-1"]
    monkeypatch.setattr(KeyFolder, "_write_approved", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        new.approve({}, take_over=True)
    assert not new.leads
    monkeypatch.undo()
    new.approve({}, take_over=True)
    assert load_keys(new.keys).epoch == 4  # one for the roster, two for the attempts to take over
    assert new.leads


def test_when_a_silo_leaves_the_others_keep_their_names(tmp_path):
    silos = {name: KeyFolder(tmp_path / name) for name in ("hospital-b", "hospital-c")}
    lead = KeyFolder(tmp_path / "hospital-a")
    lead.approve({name: silo.create(lead.create()) for name, silo in silos.items()})
    handed_out(lead, silos)
    lead.rotate("hospital-b")
    handed_out(lead, {"hospital-c": silos["hospital-c"]})
    assert set(load_keys(silos["hospital-c"].keys).roster) == {"hospital-a", "hospital-c"}


@pytest.mark.parametrize(
    ("rotations", "came"), [(1, "3, but this silo has already had epoch 3"), (2, "3, but .* epoch 4")]
)
def test_secrets_of_an_earlier_epoch_or_others_of_the_same_are_not_taken(tmp_path, rotations, came):
    """Else a copy of old keys at the lead could undo a rotation. What a server kept opens no more anyhow."""
    lead, silos = federation(tmp_path)
    handed_out(lead, silos)
    before = lead.keys.read_bytes()  # of epoch 2; without client-2 in the roster they become those of epoch 3
    for _ in range(rotations):
        lead.rotate("client-2")
    handed_out(lead, {"client-1": silos["client-1"]})
    old = outdated(lead, before, silos["client-1"])
    with pytest.raises(KeyFileError, match=f"secrets of epoch {came}"):
        silos["client-1"].open(old, "client-1", lead.public)
    assert silos["client-1"].key_id == lead.key_id


def test_a_rotation_that_was_interrupted_can_be_done_again(tmp_path, monkeypatch):
    lead, _ = federation(tmp_path)
    before = lead.key_id
    with monkeypatch.context() as patch:
        patch.setattr("paraaegis.deploy.key_folder.save_keys", lambda *_: (_ for _ in ()).throw(OSError("full")))
        with pytest.raises(OSError, match="full"):
            lead.rotate("client-2")
    assert lead.key_id == before
    assert "client-2" not in lead.approved()
    assert lead.rotate("client-2") != before


def test_a_lead_does_not_follow(tmp_path):
    lead, other = KeyFolder(tmp_path / "lead"), KeyFolder(tmp_path / "other").create()
    lead.approve({})
    with pytest.raises(KeyFileError, match="it cannot also follow"):
        lead.create(other)
    assert lead.lead == ""
