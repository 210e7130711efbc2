"""Keys move on by one-way steps: vectors of a second implementation, and the laws that erasing rests on."""

import hashlib
import hmac
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paraaegis.crypto import ratchet
from paraaegis.crypto.keys import FederationKeys
from paraaegis.crypto.ratchet import MOST_STEPS, Ratchet, Root
from paraaegis.errors import ProtocolError

SECRET, LINE = bytes(range(32)), bytes(range(100, 116))
ROOT = Root(SECRET, LINE)
POSITIONS = st.tuples(st.integers(1, 12), st.integers(0, 5))


def hkdf(key, *words):
    """RFC 5869 with one block of output; the words are packed as msgpack does it with a few short strings."""
    info = bytes([0x90 | len(words)]) + b"".join(bytes([0xA0 | len(word)]) + word.encode() for word in words)
    return hmac.digest(hmac.digest(bytes(32), key, hashlib.sha256), info + b"\x01", hashlib.sha256)


def root_by_hand(index, secret=SECRET):
    for _ in range(index):
        secret = hkdf(secret, "next root")
    return secret


def ratchet_by_hand(run, number, attempt, secret=SECRET):
    """Step and what is ahead: every round's secret gives its first attempt and the next round's secret."""
    secret = hkdf(secret, "run", run)
    for _ in range(number - 1):
        secret = hkdf(secret, "next round")
    step = hkdf(secret, "attempt")
    for _ in range(attempt):
        step = hkdf(step, "next attempt")
    return step, hkdf(secret, "next round")


def values(held):
    return {held.step, held.ahead}


# Vectors


@pytest.mark.parametrize("index", [0, 1, 2, 7, 100])
def test_a_root_is_what_hkdf_gives_and_stays_on_its_line(index):
    assert ROOT.forward(index) == Root(root_by_hand(index), LINE, index)


@pytest.mark.parametrize("index", [0, 3])
@pytest.mark.parametrize("run", ["", "r", "0123456789abcdef-1"])
def test_a_run_begins_with_what_hkdf_gives(run, index):
    expected = ratchet_by_hand(run, 1, 0, root_by_hand(index))
    assert ROOT.forward(index).begin(run) == Ratchet(1, 0, *expected)


@pytest.mark.parametrize(("number", "attempt"), [(1, 0), (1, 1), (1, 9), (2, 0), (2, 1), (5, 3), (60, 2)])
def test_a_round_and_attempt_have_the_keys_that_hkdf_gives(number, attempt):
    assert ROOT.begin("r").at(number, attempt) == Ratchet(number, attempt, *ratchet_by_hand("r", number, attempt))


def test_the_first_keys_of_a_run_are_pinned():
    """Silos with other versions of any library must have these too, else no round begins."""
    assert ROOT.forward(1).secret.hex() == "1f4b01bae0024c097ebe80ebe3b706e8963e06c56c74f07a4fc5acdb936062f5"
    assert ROOT.begin("r").at(2, 1).step.hex() == "14ec73832a12204f06009daf126c5bf36dcb15d860c38f88cc289a53dab7c80f"


# Laws


@settings(deadline=None)
@given(st.lists(POSITIONS, min_size=3, max_size=3))
def test_on_the_way_to_a_round_it_does_not_matter_where_one_stopped(positions):
    first, second, third = sorted(positions)
    start = ROOT.begin("r").at(*first)
    assert start.at(*second).at(*third) == start.at(*third) == ROOT.begin("r").at(*third)


@given(st.integers(0, 20), st.integers(0, 20))
def test_on_the_way_to_a_root_it_does_not_matter_where_one_stopped(index, more):
    assert ROOT.forward(index).forward(index + more) == ROOT.forward(index + more)


def test_runs_rounds_and_attempts_have_keys_of_their_own():
    roots = [ROOT, ROOT.forward(1), ROOT.forward(2), Root(bytes(32), LINE)]
    begun = [root.begin(run) for root in roots for run in ("r", "s", "r ")]
    steps = [start.at(number, attempt).step for start in begun for number in range(1, 6) for attempt in range(5)]
    assert len({*steps, *(root.secret for root in roots)}) == len(steps) + len(roots)


def test_the_line_is_a_name_and_no_part_of_the_keys():
    assert Root(SECRET, bytes(16)).begin("r") == ROOT.begin("r")


def test_new_roots_are_fresh_and_begin_lines_of_their_own():
    roots = [Root.new() for _ in range(5)]
    assert len({root.secret for root in roots}) == len({root.line for root in roots}) == 5
    assert {(len(root.secret), len(root.line), root.index) for root in roots} == {(32, 16, 0)}


@settings(deadline=None, max_examples=30)
@given(st.lists(POSITIONS, min_size=2, max_size=2))
def test_what_lies_behind_is_refused_and_what_is_left_is_named(positions):
    behind, here = sorted(positions)
    held = ROOT.begin("r").at(*here)
    if behind == here:
        assert held.at(*here) == held
        return
    with pytest.raises(ProtocolError) as caught:
        held.at(*behind)
    assert str(caught.value) == (
        f"the keys of round {behind[0]}, attempt {behind[1]} have been erased; only those from round {here[0]}, "
        f"attempt {here[1]} on are left"
    )


def test_a_root_does_not_go_back():
    with pytest.raises(ProtocolError, match="keys of run 2 cannot be derived from those of run 3"):
        ROOT.forward(3).forward(2)


@settings(deadline=None, max_examples=30)
@given(POSITIONS)
def test_nothing_that_was_is_among_what_is_held(position):
    """Nor the secret of this round, from which its earlier attempts would follow."""
    number, attempt = position
    held = ROOT.begin("r").at(number, attempt)
    secrets = [hkdf(SECRET, "run", "r")]
    for _ in range(number):
        secrets.append(hkdf(secrets[-1], "next round"))
    firsts = [hkdf(secret, "attempt") for secret in secrets[:number]]
    steps = [ratchet_by_hand("r", n, a)[0] for n in range(1, number + 1) for a in range(6) if (n, a) < position]
    gone = {SECRET, *secrets[:number], *steps, *(firsts if attempt else firsts[:-1])}
    assert not gone & values(held)
    assert not any(one.hex() in held.encoded() for one in gone)
    assert held.ahead == secrets[number]


def test_each_root_gives_the_next_and_none_before():
    roots = [ROOT.forward(index) for index in range(6)]
    assert all(before.forward(after.index) == after for before, after in pairwise(roots))
    assert len({root.secret for root in roots}) == 6
    for root in roots[1:]:
        with pytest.raises(ProtocolError):
            root.forward(root.index - 1)


# Limits


def test_as_many_steps_as_allowed_are_taken_and_no_more(monkeypatch):
    monkeypatch.setattr(ratchet, "MOST_STEPS", 10)
    start = ROOT.begin("r").at(3, 2)
    assert (ROOT.forward(10).index, start.at(3, 12).attempt) == (10, 12)
    assert start.at(13, 10) == ROOT.begin("r").at(3, 0).at(13, 10)
    with pytest.raises(ProtocolError, match="keys of run 11 cannot be derived from those of run 0: 0 to 10 steps"):
        ROOT.forward(11)
    with pytest.raises(ProtocolError, match="keys of round 14 cannot be derived from those of round 3"):
        start.at(14, 0)
    with pytest.raises(ProtocolError, match="keys of attempt 13 cannot be derived from those of attempt 2"):
        start.at(3, 13)
    with pytest.raises(ProtocolError, match="keys of attempt 11 cannot be derived from those of attempt 0"):
        start.at(4, 11)


@pytest.mark.parametrize(("number", "attempt"), [(MOST_STEPS + 2, 0), (1, MOST_STEPS + 1), (2**63, 2**63), (2, -1)])
def test_a_server_cannot_make_a_client_step_without_end(number, attempt):
    with pytest.raises(ProtocolError, match=f"0 to {MOST_STEPS} steps are allowed"):
        ROOT.begin("r").at(number, attempt)


@pytest.mark.parametrize("index", [MOST_STEPS + 1, 2**63, -1])
def test_a_root_goes_only_so_far_at_once(index):
    with pytest.raises(ProtocolError, match=f"0 to {MOST_STEPS} steps are allowed"):
        ROOT.forward(index)


# As text


@given(POSITIONS)
def test_keys_come_back_from_their_text(position):
    held = ROOT.begin("r").at(*position)
    assert Ratchet.decoded(held.encoded()) == held


GOOD = ROOT.begin("r").at(3, 1).encoded()
NUMBER, ATTEMPT, STEP, AHEAD = GOOD.split(" ")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "noise",
        GOOD[:-1],
        GOOD[:-2],
        GOOD + "00",
        GOOD + " 0",
        GOOD[2:],
        f"0 {ATTEMPT} {STEP} {AHEAD}",
        f"-3 {ATTEMPT} {STEP} {AHEAD}",
        f"{NUMBER} -1 {STEP} {AHEAD}",
        f"x {ATTEMPT} {STEP} {AHEAD}",
        f"{NUMBER} 1.0 {STEP} {AHEAD}",
        f"{NUMBER} {ATTEMPT} {STEP[:-1]}g {AHEAD}",
        f"{NUMBER} {ATTEMPT} {STEP[:-2]} {AHEAD}",
        f"{NUMBER} {ATTEMPT} {STEP}00 {AHEAD[:-2]}",
        f"{NUMBER} {ATTEMPT}  {AHEAD}",
    ],
)
def test_damaged_text_is_refused(text):
    with pytest.raises(ValueError, match=r".") as caught:
        Ratchet.decoded(text)
    assert STEP not in str(caught.value)
    assert AHEAD not in str(caught.value)


def test_nothing_shows_a_secret():
    held = ROOT.begin("r").at(3, 1)
    for holder in (ROOT, held, FederationKeys(ROOT)):
        text = f"{holder!r} {holder}"
        for secret in (SECRET, held.step, held.ahead):
            assert secret.hex() not in text
            assert repr(secret)[2:-1] not in text
    assert repr(held) == "Ratchet(number=3, attempt=1)"
