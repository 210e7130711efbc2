"""Roots go forward only, whatever a packet brings and whatever happens meanwhile."""

import threading
from dataclasses import replace

import pytest

from key_folders import federation, handed_out, parcels_for
from paraaegis.crypto.keys import load_keys, save_keys, spend_root
from paraaegis.deploy.key_folder import KeyFolder


def test_a_packet_takes_no_root_back_to_an_earlier_one_of_its_line(tmp_path):
    """A lead that missed some runs, or a silo that joins while one begins, must not bring back what was erased."""
    lead, silos = federation(tmp_path)
    handed_out(lead, silos)
    silo, root = silos["client-1"], load_keys(lead.keys).root
    spend_root(silo.keys, root.forward(4))
    third = KeyFolder(tmp_path / "client-3")
    lead.approve({"client-3": third.create(lead.create())})
    handed_out(lead, {**silos, "client-3": third})
    came = load_keys(lead.keys)
    assert came.root == root
    assert load_keys(silo.keys) == replace(came, root=root.forward(5))  # the newer roster all the same
    assert load_keys(third.keys) == came
    assert silo.key_id == lead.key_id


def test_a_packet_with_a_later_root_or_one_of_another_line_is_taken_as_it_is(tmp_path):
    lead, silos = federation(tmp_path)
    handed_out(lead, silos)
    silo, root = silos["client-1"], load_keys(lead.keys).root
    spend_root(silo.keys, root.forward(1))
    spend_root(lead.keys, root.forward(6))
    handed_out(lead, silos)
    assert load_keys(silo.keys).root == root.forward(7)
    lead.rotate()
    handed_out(lead, silos)
    assert load_keys(silo.keys) == load_keys(lead.keys)
    assert load_keys(silo.keys).root.index == 0


def test_how_many_runs_began_is_shown(tmp_path):
    lead, _ = federation(tmp_path)
    spend_root(lead.keys, load_keys(lead.keys).root.forward(2))
    assert lead.show().runs == 3


@pytest.mark.parametrize("change", ["rotate", "seal"])
def test_new_secrets_wait_for_a_run_that_begins_and_are_not_overwritten_by_it(tmp_path, monkeypatch, change):
    """The run's process has read the old keys, and writes the next root of their line a moment later."""
    lead, silos = federation(tmp_path)
    handed_out(lead, silos)
    before, third = load_keys(lead.keys), KeyFolder(tmp_path / "client-3")
    lead.approve({"client-3": third.create(lead.create())})
    in_save, changed = threading.Event(), threading.Event()

    def slow(round_id, keys):
        in_save.set()
        changed.wait(0.5)
        save_keys(round_id, keys)

    monkeypatch.setattr("paraaegis.crypto.keys.save_keys", slow)
    thread = threading.Thread(target=spend_root, args=(lead.keys, before.root))
    thread.start()
    in_save.wait(10)
    lead.rotate() if change == "rotate" else parcels_for(lead, {"client-3": third})
    changed.set()
    thread.join(10)
    after = load_keys(lead.keys)
    assert after.epoch == before.epoch + 1
    if change == "rotate":
        assert after.root.line != before.root.line
    else:
        assert after.root == before.root.forward(1)
        assert "client-3" in after.roster
