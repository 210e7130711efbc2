"""Key files are their owner's alone, and nothing prints a secret."""

import os
import random
import signal
import subprocess
import sys
import threading
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from paraaegis.crypto import keys as module
from paraaegis.crypto.kdf import derive, tag
from paraaegis.crypto.keys import FederationKeys, epoch_and_roster, holds_retired, load_keys, save_keys, spend_root
from paraaegis.crypto.ratchet import Root
from paraaegis.errors import KeyFileError, ProtocolError
from paraaegis.files import locked
from toy import KEYS, configure, federation_of, learners_of

SECRET, LINE = bytes(range(100, 132)), bytes(range(16))
ROOT = Root(SECRET, LINE, 3)
ROSTER = {"client-0": bytes(32), "client-1": bytes(range(32))}
SOME = FederationKeys(ROOT, epoch=7, roster=ROSTER)


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "keys"
    save_keys(path, SOME)
    return path


def test_keys_come_back_from_their_file(path):
    assert load_keys(path) == SOME


def test_a_key_file_is_readable_by_its_owner_alone_whatever_the_umask(tmp_path):
    before = os.umask(0)
    try:
        save_keys(tmp_path / "keys", SOME)
    finally:
        os.umask(before)
    assert (tmp_path / "keys").stat().st_mode & 0o777 == 0o600


def test_saving_again_replaces_the_file_and_leaves_nothing_else(path):
    (path.parent / "keys.partial").write_bytes(b"left by a kill")
    other = FederationKeys(Root(bytes(32), LINE))
    save_keys(path, other)
    assert load_keys(path) == other
    assert [found.name for found in path.parent.iterdir()] == ["keys"]
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o666, 0o610, 0o601])
def test_a_file_that_others_can_reach_is_refused_with_the_command_that_helps(path, mode):
    path.chmod(mode)
    with pytest.raises(KeyFileError) as caught:
        load_keys(path)
    assert f"mode {mode:o}" in str(caught.value)
    assert f"chmod 600 {path}" in str(caught.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(KeyFileError, match=r"no key file at .*nowhere"):
        load_keys(tmp_path / "nowhere")


FIELDS = {
    "kind": "paraaegis-federation-keys-2",
    "root": SECRET,
    "line": LINE,
    "index": 3,
    "epoch": 7,
    "roster": ROSTER,
}


def test_a_key_file_holds_what_its_format_says(path):
    assert msgspec.msgpack.decode(path.read_bytes()) == FIELDS


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff" * 10,
        msgspec.msgpack.encode(FIELDS)[:-3],
        msgspec.msgpack.encode(FIELDS) + b"\0",
        msgspec.msgpack.encode(FIELDS | {"kind": "another-program-7"}),
        msgspec.msgpack.encode(FIELDS | {"root": SECRET[:-1]}),
        msgspec.msgpack.encode(FIELDS | {"index": "3"}),
        msgspec.msgpack.encode(FIELDS | {"roster": {"client-0": bytes(31)}}),
        msgspec.msgpack.encode(FIELDS | {"more": 1}),
        msgspec.msgpack.encode({"kind": FIELDS["kind"]}),
    ],
    ids=[
        "empty",
        "noise",
        "cut",
        "surplus",
        "other-kind",
        "short-key",
        "odd-index",
        "short-identity",
        "unknown-field",
        "fields-missing",
    ],
)
def test_a_damaged_or_foreign_file_is_refused_by_name(path, content):
    path.write_bytes(content)
    with pytest.raises(KeyFileError, match=str(path)) as caught:
        load_keys(path)
    assert SECRET.hex() not in str(caught.value)
    assert repr(SECRET)[2:-1] not in str(caught.value)


def shows_a_secret(text, keys):
    key = keys.root.secret
    return any(form in text for form in (repr(key)[2:-1], key.hex(), str(list(key))[1:-1]))


def test_nothing_that_holds_a_secret_shows_it():
    config = configure("protect.method=paraaegis-static", "federation.clients=1")
    silo = federation_of(config, learners_of(np.ones((1, 3)))).clients["client-0"]
    assert shows_a_secret(repr({"root": KEYS.root.secret}), KEYS)
    for holder in (KEYS, silo, silo.half):
        assert not shows_a_secret(f"{holder!r} {holder}", KEYS)


def test_a_derived_key_is_bound_to_purpose_and_every_part():
    names = [("a",), ("b",), ("a", "bc"), ("a", "b", "c"), ("a", "b", "cd"), ("a", 1), ("a", "1"), ("a", 1, 0)]
    assert len({derive(SECRET, *name) for name in names}) == len(names)
    assert derive(SECRET, "a", 1) == derive(SECRET, "a", 1) != derive(bytes(32), "a", 1)


def test_a_tag_is_bound_to_key_and_parts():
    parts = [(b"ab", b"c"), (b"a", b"bc"), (b"abc",), (b"abc", b"")]
    assert len({tag(SECRET, *part) for part in parts}) == len(parts)
    assert tag(SECRET, b"a") == tag(SECRET, b"a") != tag(bytes(32), b"a")
    assert len(tag(SECRET, b"a")) == 16


# Keys of an older version


OLD = {"kind": "paraaegis-federation-keys-1", "profile": "precise", "vote": SECRET, "ckks": b"ckks secret bytes"}


@pytest.mark.parametrize(
    ("fields", "epoch", "roster"), [({}, 1, {}), ({"epoch": 9, "roster": ROSTER}, 9, ROSTER)], ids=["oldest", "old"]
)
def test_keys_of_an_older_version_are_refused_with_the_command_that_helps(path, fields, epoch, roster):
    path.write_bytes(msgspec.msgpack.encode(OLD | fields))
    with pytest.raises(KeyFileError, match=f"{path} holds keys of an older version") as caught:
        load_keys(path)
    for told in (f"(epoch {epoch})", "If there is a lead, run `paraaegis keys rotate`", "`paraaegis keys new`"):
        assert told in str(caught.value)
    assert "ckks secret" not in str(caught.value)
    assert holds_retired(path)
    assert epoch_and_roster(path) == (epoch, roster)


def test_new_keys_are_not_taken_for_old_ones(path):
    assert not holds_retired(path)
    assert epoch_and_roster(path) == (7, ROSTER)


def test_epoch_and_roster_of_what_others_can_read_or_is_damaged_are_not_taken(path):
    path.write_bytes(b"noise")
    with pytest.raises(KeyFileError, match="not a key file"):
        epoch_and_roster(path)
    assert not holds_retired(path)
    path.chmod(0o644)
    for read in (epoch_and_roster, holds_retired):
        with pytest.raises(KeyFileError, match="chmod 600"):
            read(path)


# A root is erased when its run begins


@pytest.mark.parametrize("ahead", [0, 1, 5])
def test_a_spent_root_is_gone_and_the_next_of_its_line_is_there(path, ahead):
    """Also where the run's root was ahead of what lay here: this silo had missed some runs."""
    used = ROOT.forward(3 + ahead)
    spend_root(path, used)
    assert load_keys(path) == replace(SOME, root=ROOT.forward(4 + ahead))
    for gone in (ROOT, used):
        assert gone.secret not in path.read_bytes()
    with pytest.raises(ProtocolError):
        load_keys(path).root.forward(used.index)


def test_a_root_that_was_spent_before_changes_nothing(path):
    spend_root(path, ROOT.forward(8))
    before = path.read_bytes()
    for index in (8, 5, 3):
        spend_root(path, ROOT.forward(index))
        assert path.read_bytes() == before


def test_a_root_of_another_line_changes_nothing(path):
    """A rotation that came while a run began is not undone."""
    before = path.read_bytes()
    for index in (0, 3, 50):
        spend_root(path, Root(SECRET, bytes(16), index))
    assert path.read_bytes() == before


def test_a_key_file_stays_its_owners_alone_when_a_root_is_spent(path):
    before = os.umask(0)
    try:
        spend_root(path, ROOT)
    finally:
        os.umask(before)
    modes = {found.name: found.stat().st_mode & 0o777 for found in path.parent.iterdir()}
    assert modes == {"keys": 0o600, "keys.lock": 0o600}


def test_keys_that_others_could_read_are_not_spent(path):
    path.chmod(0o644)
    before = path.read_bytes()
    with pytest.raises(KeyFileError, match="chmod 600"):
        spend_root(path, ROOT)
    assert path.read_bytes() == before


def test_a_slow_process_does_not_write_an_older_root_over_a_newer_one(path, monkeypatch):
    """It has read the file and waits before it writes: the other one must wait for it."""
    save, in_save, newer_is_done = module.save_keys, threading.Event(), threading.Event()

    def slow(round_id, keys):
        if keys.root.index == 4:
            in_save.set()
            newer_is_done.wait(0.5)
        save(round_id, keys)

    def newer():
        in_save.wait(10)
        spend_root(path, ROOT.forward(9))
        newer_is_done.set()

    monkeypatch.setattr(module, "save_keys", slow)
    thread = threading.Thread(target=newer)
    thread.start()
    spend_root(path, ROOT)
    thread.join(10)
    assert load_keys(path) == replace(SOME, root=ROOT.forward(10))


def test_many_at_once_end_at_the_newest_and_never_go_back(path):
    indices, seen, over = [*range(3, 23)] * 2, [], threading.Event()
    random.Random(0).shuffle(indices)  # noqa: S311

    def watch():
        while not over.is_set():
            seen.append(load_keys(path))

    watcher = threading.Thread(target=watch)
    spenders = [threading.Thread(target=spend_root, args=(path, ROOT.forward(index))) for index in indices]
    for thread in (watcher, *spenders):
        thread.start()
    for thread in spenders:
        thread.join(30)
    over.set()
    watcher.join(30)
    assert load_keys(path) == replace(SOME, root=ROOT.forward(23))
    assert [keys.root.index for keys in seen] == sorted(keys.root.index for keys in seen)
    assert all(keys == replace(SOME, root=ROOT.forward(keys.root.index)) for keys in seen)


SPEND = """
import os, pathlib, signal, sys
from paraaegis.crypto.keys import load_keys, spend_root
path = pathlib.Path(sys.argv[1])
used = load_keys(path).root.forward(int(sys.argv[2]))
if sys.argv[3:]:
    pathlib.Path.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
print("ready", flush=True)
spend_root(path, used)
"""


def spending(path, index, *more):
    command = [sys.executable, "-c", SPEND, str(path), str(index), *more]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_two_processes_at_once_end_at_the_newest_and_keep_epoch_and_roster(path):
    before = path.read_bytes()
    with locked(path):
        both = [spending(path, index) for index in (12, 5)]
        assert [process.stdout.readline() for process in both] == ["ready\n"] * 2
        for process in both:
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.3)  # until it is its turn
        assert path.read_bytes() == before
    for process in both:
        process.communicate(timeout=30)
    assert [process.returncode for process in both] == [0, 0]
    assert load_keys(path) == replace(SOME, root=ROOT.forward(13))


def test_a_kill_before_the_rename_leaves_a_whole_file_and_no_lock(path):
    before = path.read_bytes()
    process = spending(path, 3, "killed")
    process.communicate(timeout=30)
    assert process.returncode == -signal.SIGKILL
    assert path.read_bytes() == before
    partial = path.with_name("keys.partial")
    assert {found.stat().st_mode & 0o777 for found in (path, partial)} == {0o600}
    assert load_keys(partial) == replace(SOME, root=ROOT.forward(4))  # what was to be
    spend_root(path, ROOT)
    assert load_keys(path) == replace(SOME, root=ROOT.forward(4))
    assert not partial.exists()


def test_a_full_disk_leaves_the_keys_as_they_were(path, monkeypatch):
    before = path.read_bytes()
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match=str(path)):
        spend_root(path, ROOT)
    monkeypatch.undo()
    assert path.read_bytes() == before
    spend_root(path, ROOT)
    assert load_keys(path).root == ROOT.forward(4)
