"""A client's state on disk is the one before or after a message, never one between."""

from dataclasses import replace

import numpy as np
import pytest

from paraaegis.engines.flower.store import Store
from paraaegis.errors import RunError
from paraaegis.protocol.state import ClientState

WEIGHTS = np.arange(1000, dtype=np.float32)
STATE = ClientState(weights=WEIGHTS, number=3, attempt=1, mark="ab", elected=np.ones(4, dtype=np.bool_))
LEARNT = {"momentum": WEIGHTS * 2, "steps": np.asarray(7)}


def same(left, right):
    mine, yours = left.to_arrays(), right.to_arrays()
    return mine.keys() == yours.keys() and all(np.array_equal(mine[name], yours[name]) for name in mine)


def test_a_fresh_process_finds_what_the_last_one_saved(tmp_path):
    Store(tmp_path).save(STATE, LEARNT)
    found = Store(tmp_path)
    assert same(found.state(), STATE)
    assert found.learner().keys() == LEARNT.keys()
    assert all(np.array_equal(found.learner()[name], LEARNT[name]) for name in LEARNT)


def test_only_what_changed_is_written_again(tmp_path):
    Store(tmp_path).save(STATE, LEARNT)
    before = {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("*.npy")}
    store = Store(tmp_path)
    store.save(replace(store.state(), phase="voted", update=WEIGHTS + 1))
    after = {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("*.npy")}
    assert before.items() <= after.items()
    assert [name for name in after if name not in before] == ["000002-state-update.npy"]
    assert Store(tmp_path).state().phase == "voted"
    assert np.array_equal(Store(tmp_path).learner()["momentum"], LEARNT["momentum"])


def test_what_is_no_longer_needed_goes(tmp_path):
    store = Store(tmp_path)
    store.save(replace(STATE, update=WEIGHTS), LEARNT)
    store.save(replace(STATE, update=None), LEARNT)
    assert Store(tmp_path).state().update is None
    assert len(list(tmp_path.glob("*update*"))) == 0


@pytest.mark.parametrize("moment", ["arrays written", "manifest half-written"])
def test_a_kill_before_the_manifest_is_replaced_leaves_the_old_state(tmp_path, monkeypatch, moment):
    Store(tmp_path).save(STATE, LEARNT)
    store = Store(tmp_path)
    loaded = store.state()

    def killed(manifest):
        if moment == "manifest half-written":
            (tmp_path / "manifest.partial").write_bytes(b'{"fi')
        raise KeyboardInterrupt

    monkeypatch.setattr(store, "_replace", killed)
    with pytest.raises(KeyboardInterrupt):
        store.save(replace(loaded, weights=WEIGHTS * 3, number=9), LEARNT)
    assert same(Store(tmp_path).state(), STATE)
    Store(tmp_path).save(replace(STATE, number=4), LEARNT)
    assert Store(tmp_path).state().number == 4


def test_a_state_is_its_owners_alone(tmp_path):
    Store(tmp_path / "run").save(STATE)
    assert (tmp_path / "run").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("spoil", ["manifest.json", "000001-state-weights.npy"])
def test_a_damaged_state_is_refused_by_name(tmp_path, spoil):
    Store(tmp_path).save(STATE, LEARNT)
    (tmp_path / spoil).write_bytes(b"nonsense")
    with pytest.raises(RunError, match=spoil):
        Store(tmp_path).state()
