"""Key files are their owner's alone, and nothing prints a secret."""

import os

import msgspec
import numpy as np
import pytest

from paraaegis.crypto.keys import FederationKeys, derive, load_keys, new_vote_key, save_keys, tag
from paraaegis.errors import KeyFileError
from paraaegis.methods import Materials
from toy import KEYS, configure, learners_of, wired_of

VOTE = bytes(range(100, 132))
SOME = FederationKeys(vote=VOTE, ckks=b"ckks secret bytes", profile="precise")


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
    other = FederationKeys(vote=bytes(32), ckks=b"", profile="precise")
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


FIELDS = {"kind": "paraaegis-federation-keys-1", "profile": "precise", "vote": VOTE, "ckks": b""}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff" * 10,
        msgspec.msgpack.encode(FIELDS)[:-3],
        msgspec.msgpack.encode(FIELDS) + b"\0",
        msgspec.msgpack.encode(FIELDS | {"kind": "another-program-7"}),
        msgspec.msgpack.encode(FIELDS | {"vote": VOTE[:-1]}),
        msgspec.msgpack.encode(FIELDS | {"more": 1}),
        msgspec.msgpack.encode({"kind": FIELDS["kind"]}),
    ],
    ids=["empty", "noise", "cut", "surplus", "other-kind", "short-key", "unknown-field", "fields-missing"],
)
def test_a_damaged_or_foreign_file_is_refused_by_name(path, content):
    path.write_bytes(content)
    with pytest.raises(KeyFileError, match=str(path)) as caught:
        load_keys(path)
    assert "ckks secret" not in str(caught.value)


def shows_a_secret(text, keys):
    return any(
        form in text for key in (keys.vote, keys.ckks) for form in (repr(key)[2:-1], key.hex(), str(list(key))[1:-1])
    )


def test_nothing_that_holds_a_secret_shows_it():
    config = configure("protect.method=paraaegis-static", "federation.clients=1")
    silo = wired_of(config, learners_of(np.ones((1, 3)))).silos["client-0"]
    assert shows_a_secret(repr({"vote": KEYS.vote}), KEYS)
    for holder in (KEYS, Materials(config, KEYS), silo, silo.half):
        assert not shows_a_secret(f"{holder!r} {holder}", KEYS)


def test_vote_keys_are_fresh():
    assert len({new_vote_key() for _ in range(5)}) == 5
    assert len(new_vote_key()) == 32


def test_a_derived_key_is_bound_to_purpose_and_every_part():
    names = [("a",), ("b",), ("a", "bc"), ("a", "b", "c"), ("a", "b", "cd"), ("a", 1), ("a", "1"), ("a", 1, 0)]
    assert len({derive(VOTE, *name) for name in names}) == len(names)
    assert derive(VOTE, "a", 1) == derive(VOTE, "a", 1) != derive(bytes(32), "a", 1)


def test_a_tag_is_bound_to_key_and_parts():
    parts = [(b"ab", b"c"), (b"a", b"bc"), (b"abc",), (b"abc", b"")]
    assert len({tag(VOTE, *part) for part in parts}) == len(parts)
    assert tag(VOTE, b"a") == tag(VOTE, b"a") != tag(bytes(32), b"a")
    assert len(tag(VOTE, b"a")) == 16
