"""A client's state on disk is the one before or after a message, never one between."""

import subprocess
import sys
import threading
from dataclasses import replace

import numpy as np
import pytest

from paraaegis.crypto.ratchet import Root
from paraaegis.deploy.store import Store
from paraaegis.errors import RunError
from paraaegis.protocol.state import ClientState

WEIGHTS = np.arange(1000, dtype=np.float32)
HELD = Root(bytes(range(32)), bytes(16)).begin("run").at(3, 1)
STATE = ClientState(
    weights=WEIGHTS,
    number=3,
    attempt=1,
    held=HELD,
    once=bytes(range(50, 82)),
    fingerprint="ab",
    elected=np.ones(4, dtype=np.bool_),
)
LEARNT = {"momentum": WEIGHTS * 2, "steps": np.asarray(7)}


@pytest.fixture
def opened(tmp_path):
    """Opens the store as a new process would, once the last one is done with it."""
    last = []

    def again(path=None):
        for store in last:
            store.__exit__(None, None, None)
        last[:] = [Store(path or tmp_path)]
        return last[0]

    yield again
    for store in last:
        store.__exit__(None, None, None)


def same(left, right):
    mine, yours = left.to_arrays(), right.to_arrays()
    return mine.keys() == yours.keys() and all(np.array_equal(mine[name], yours[name]) for name in mine)


def test_a_fresh_process_finds_what_the_last_one_saved(opened, tmp_path):
    opened().save(STATE, LEARNT)
    found = opened()
    assert same(found.state(), STATE)
    assert found.learner().keys() == LEARNT.keys()
    assert all(np.array_equal(found.learner()[name], LEARNT[name]) for name in LEARNT)


def test_only_what_changed_is_written_again(opened, tmp_path):
    opened().save(STATE, LEARNT)
    before = {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("*.npy")}
    store = opened()
    store.save(replace(store.state(), phase="voted", update=WEIGHTS + 1))
    after = {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("*.npy")}
    assert before.items() <= after.items()
    assert [name for name in after if name not in before] == ["000002-state-update.npy"]
    assert opened().state().phase == "voted"
    assert np.array_equal(opened().learner()["momentum"], LEARNT["momentum"])


def test_what_is_no_longer_needed_goes(opened, tmp_path):
    store = opened()
    store.save(replace(STATE, update=WEIGHTS), LEARNT)
    store.save(replace(STATE, update=None), LEARNT)
    assert opened().state().update is None
    assert len(list(tmp_path.glob("*update*"))) == 0


@pytest.mark.parametrize("moment", ["arrays written", "manifest half-written"])
def test_a_kill_before_the_manifest_is_replaced_leaves_the_old_state(opened, tmp_path, monkeypatch, moment):
    opened().save(STATE, LEARNT)
    store = opened()
    loaded = store.state()

    def killed(manifest):
        if moment == "manifest half-written":
            (tmp_path / "manifest.partial").write_bytes(b'{"fi')
        raise KeyboardInterrupt

    monkeypatch.setattr(store, "_replace", killed)
    with pytest.raises(KeyboardInterrupt):
        store.save(replace(loaded, weights=WEIGHTS * 3, number=9), LEARNT)
    assert same(opened().state(), STATE)
    opened().save(replace(STATE, number=4), LEARNT)
    assert opened().state().number == 4


def test_a_state_is_its_owners_alone(opened, tmp_path):
    opened(tmp_path / "run").save(STATE)
    assert (tmp_path / "run").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "run" / "manifest.json").stat().st_mode & 0o777 == 0o600  # it holds keys


def test_keys_are_as_they_were_in_a_fresh_process(opened):
    opened().save(STATE)
    assert (opened().state().held, opened().state().once) == (HELD, STATE.once)
    opened().save(replace(STATE, held=None, once=b""))
    assert (opened().state().held, opened().state().once) == (None, b"")


def test_keys_of_a_round_that_is_over_lie_nowhere_any_more(opened, tmp_path):
    opened().save(STATE, LEARNT)
    later = HELD.at(4, 0)
    opened().save(replace(STATE, number=4, attempt=0, held=later, once=b""))
    everything = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert later.step.hex().encode() in everything
    for erased in (HELD.step, HELD.ahead, STATE.once):
        assert erased.hex().encode() not in everything
        assert erased not in everything


@pytest.mark.parametrize("spoil", ["held", "once"])
def test_damaged_keys_are_refused_by_name_and_not_shown(opened, tmp_path, spoil):
    opened().save(STATE)
    manifest = tmp_path / "manifest.json"
    secret = (HELD.step if spoil == "held" else STATE.once).hex()
    manifest.write_text(manifest.read_text().replace(secret, secret[:-1] + "x"))
    with pytest.raises(RunError, match="stored keys are damaged") as caught:
        opened().state()
    assert secret[:-2] not in str(caught.value)


@pytest.mark.parametrize("spoil", ["manifest.json", "000001-state-weights.npy"])
def test_a_damaged_state_is_refused_by_name(opened, tmp_path, spoil):
    opened().save(STATE, LEARNT)
    (tmp_path / spoil).write_bytes(b"nonsense")
    with pytest.raises(RunError, match=spoil):
        opened().state()


def test_when_a_run_is_over_those_that_were_over_before_go_and_an_interrupted_one_stays(opened, tmp_path):
    for run in ("first", "interrupted", "last"):
        store = opened(tmp_path / run)
        store.save(STATE)
        if run != "interrupted":
            store.finish()
    store.__exit__(None, None, None)
    assert [len(list((tmp_path / run).glob("*.npy"))) > 0 for run in ("first", "interrupted", "last")] == [0, 1, 1]
    assert same(opened(tmp_path / "last").state(), STATE)
    assert not opened(tmp_path / "interrupted").forgotten
    assert opened(tmp_path / "first").forgotten  # so that it is not begun again, in the same orders


def test_the_end_of_a_run_waits_for_no_other(tmp_path):
    with Store(tmp_path / "busy") as busy, Store(tmp_path / "ending") as ending:
        for store in (busy, ending):
            store.save(STATE)
        ends = [threading.Thread(target=store.finish, daemon=True) for store in (busy, ending)]  # each wants both locks
        for end in ends:
            end.start()
        for end in ends:
            end.join(timeout=30)
        assert not any(end.is_alive() for end in ends)
        assert same(busy.state(), STATE)


def test_a_second_process_waits_for_the_first(tmp_path):
    code = "import sys, pathlib, paraaegis.deploy.store as s; s.Store(pathlib.Path(sys.argv[1]))"
    with Store(tmp_path), pytest.raises(subprocess.TimeoutExpired):
        subprocess.run([sys.executable, "-c", code, str(tmp_path)], timeout=3, check=True)
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], timeout=30, check=True)


@pytest.mark.parametrize("value", [True, float("nan"), float("inf"), np.float32(0.1), 2**60])
def test_a_learners_scalars_come_back_as_they_were(opened, value):
    opened().save(STATE, {"one": np.asarray(value)})
    found = opened().learner()["one"]
    np.testing.assert_array_equal(found, np.asarray(value))
    assert found.dtype == np.asarray(value).dtype


def test_a_round_that_is_played_again_starts_from_the_learner_before_it(opened):
    first, second, third = ({"momentum": WEIGHTS * factor} for factor in (1, 2, 3))
    opened().save(STATE, first)
    opened().save(replace(STATE, number=4), second)
    np.testing.assert_array_equal(opened().learner(again=True)["momentum"], first["momentum"])
    opened().save(replace(STATE, number=4, attempt=2), third, again=True)
    np.testing.assert_array_equal(opened().learner(again=True)["momentum"], first["momentum"])
    np.testing.assert_array_equal(opened().learner()["momentum"], third["momentum"])
    opened().save(replace(STATE, number=4, attempt=2, phase="sent"))
    np.testing.assert_array_equal(opened().learner(again=True)["momentum"], first["momentum"])


def test_what_was_loaded_cannot_be_changed_in_place_and_taken_for_unchanged(opened):
    opened().save(STATE, LEARNT)
    store = opened()
    for array in (store.state().weights, store.learner()["momentum"]):
        with pytest.raises(ValueError, match="read-only"):
            array += 1


def test_an_old_run_that_is_damaged_does_not_keep_a_new_one_from_its_end(opened, tmp_path):
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "manifest.json").write_text("{")
    store = opened(tmp_path / "new")
    store.save(STATE, LEARNT)
    store.finish()
    assert same(opened(tmp_path / "new").state(), STATE)
