"""The linear MAC, held to a second implementation by Python's integers."""

import secrets

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paraaegis.crypto import mac
from paraaegis.crypto.mac import LIMIT, PRIME, add_tags, pack_tag, pad, product
from paraaegis.crypto.streams import keystream
from paraaegis.errors import CryptoError

KEY = bytes(range(32))


def by_hand(key, parts, weight, block):
    longest = max(len(part) for part in parts)
    draws = np.frombuffer(keystream(key)(8 * (2 + min(longest, block))), dtype="<u8") >> np.uint64(3)
    r, for_weight, keys = int(draws[0]), int(draws[1]), [int(one) for one in draws[2:]]
    total, before = 0, 0  # blocks of the parts that went before
    for part in parts:
        total += sum(keys[j % block] * pow(r, before + j // block, PRIME) * int(x) for j, x in enumerate(part))
        before += -(-len(part) // block)
    return (total + for_weight * weight) % PRIME


def blocks_of(monkeypatch, size):
    monkeypatch.setattr(mac, "CHUNK", size)
    monkeypatch.setattr(mac, "slices", lambda n: (slice(i, min(i + size, n)) for i in range(0, n, size)))


@settings(deadline=None, max_examples=50)
@given(st.lists(st.lists(st.integers(-LIMIT, LIMIT), max_size=40), min_size=1, max_size=3), st.integers(0, 2**50))
def test_a_product_is_what_integers_give(parts, weight):
    arrays = [np.array(part, dtype=np.int64) for part in parts]
    assert product(KEY, arrays, weight) == by_hand(KEY, parts, weight, mac.CHUNK)


def test_several_blocks_and_both_widths_agree(monkeypatch):
    steps = np.random.default_rng(0).integers(-(2**31) + 1, 2**31, size=100)
    blocks_of(monkeypatch, 32)
    for length in (0, 1, 31, 32, 33, 64, 100):
        part = steps[:length]
        wanted = by_hand(KEY, [part], 7, 32)
        assert product(KEY, [part], 7) == product(KEY, [part.astype(np.int32)], 7) == wanted


@pytest.mark.parametrize("cuts", [[0], [1], [31], [32], [33], [100], [10, 20], [32, 96], [40, 40]])
def test_several_parts_of_several_blocks_agree(monkeypatch, cuts):
    parts = np.split(np.random.default_rng(0).integers(-(2**40), 2**40, size=100), cuts)
    blocks_of(monkeypatch, 32)
    assert product(KEY, parts, 7) == by_hand(KEY, parts, 7, 32)


def test_a_value_counts_at_its_place_in_its_part_alone(monkeypatch):
    """Else a server could move what it passes on from the inside of a model to its outside."""
    blocks_of(monkeypatch, 32)
    found = set()
    for place in range(100):
        parts = np.split(np.eye(1, 100, place, dtype=np.int64)[0], [40])
        found.add(product(KEY, parts, 0))
    assert len(found) == 100
    one, other = np.arange(1, 41), np.arange(2, 42)
    assert product(KEY, [one, other], 0) != product(KEY, [other, one], 0)


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(-(2**40), 2**40), min_size=5, max_size=5), min_size=1, max_size=6))
def test_the_sum_of_tags_is_the_tag_of_the_sum(rows):
    pads = [pad(KEY, f"client-{i}", mac.new_nonce(), b"context") for i in range(len(rows))]
    tags = [pack_tag(product(KEY, [np.array(row)], i) + pads[i]) for i, row in enumerate(rows)]
    whole = product(KEY, [np.sum(rows, axis=0)], sum(range(len(rows))))
    assert add_tags(tags) == pack_tag(whole + sum(pads))


@pytest.mark.parametrize("value", [LIMIT + 1, -LIMIT - 1, PRIME, 2**63 - 1, -(2**63)])
def test_a_value_that_a_multiple_of_the_prime_could_hide_in_is_refused(value):
    with pytest.raises(CryptoError, match="must lie within"):
        product(KEY, [np.zeros(3, dtype=np.int64), np.array([0, value], dtype=np.int64)], 1)


def test_any_single_change_changes_the_product():
    steps = np.random.default_rng(1).integers(-1000, 1000, size=300)
    honest = product(KEY, [steps], 5)
    for place in range(300):
        changed = steps.copy()
        changed[place] += 1
        assert product(KEY, [changed], 5) != honest
    assert product(KEY, [steps], 6) != honest
    assert product(secrets.token_bytes(32), [steps], 5) != honest
    assert product(KEY, [np.roll(steps, 1)], 5) != honest


def test_pads_differ_by_client_nonce_and_context():
    nonces = [mac.new_nonce() for _ in range(2)]
    drawn = {pad(KEY, name, nonce, context) for name in "ab" for nonce in nonces for context in (b"1", b"2")}
    assert len(drawn) == 8
    assert pad(KEY, "a", nonces[0], b"bc") != pad(KEY, "ab", nonces[0], b"c")


def test_uploads_without_tags_sum_to_none():
    assert add_tags([b"", b""]) == b""
