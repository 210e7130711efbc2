"""A set of positions has exactly one code, and every other string of bytes is refused."""

import hashlib
import tracemalloc
from contextlib import suppress
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gaps_by_hand import code_of, octets
from paraaegis.errors import ProtocolError
from paraaegis.protocol import gaps
from paraaegis.protocol.gaps import decode, encode, positions_of, remainder_bits, typical_size
from paraaegis.types import Blob

quick = settings(max_examples=100, deadline=None)


KNOWN = "f4ea08a6e02e0002a69da53a3fc7acace89384021c19505f8753d66d022b35bc"  # 4000 squares modulo 99,991


def code(*positions, length):
    return bytes(encode(np.array(positions, dtype=np.int64), length).view)


def refused(data, k, length, match):
    with pytest.raises(ProtocolError, match=match):
        decode(Blob(data), k, length)


@st.composite
def sets(draw):
    """Positions and a length, from empty to full and from dense to sparse."""
    length = draw(st.integers(0, 3000))
    k = draw(st.sampled_from([0, 1, 2, 7, length // 100, length // 10, length // 3, length]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return np.sort(rng.permutation(length)[:k]), length


@quick
@given(drawn=sets())
def test_a_code_is_that_of_the_definition_and_gives_the_positions_back(drawn):
    positions, length = drawn
    encoded = encode(positions, length)
    assert bytes(encoded.view) == code_of(positions.tolist(), length)
    np.testing.assert_array_equal(decode(encoded, positions.size, length), positions)


@pytest.mark.parametrize("writeable", [bytes, bytearray])
def test_known_answers(writeable):
    """Gaps of 3, 4, 0 and 23 in 40 positions: three bits of remainder, quotients of 0, 0, 0 and 2."""
    expected = octets("110" + "001" + "000" + "111") + octets("1" + "1" + "1" + "001")
    assert code(3, 8, 9, 33, length=40) == expected == bytes.fromhex("230e27")
    assert decode(Blob(writeable(expected)), 4, 40).tolist() == [3, 8, 9, 33]
    squares = sorted({i * i % 99_991 for i in range(4000)})
    assert hashlib.sha256(code(*squares, length=99_991)).hexdigest() == KNOWN
    assert hashlib.sha256(code_of(squares, 99_991)).hexdigest() == KNOWN


@quick
@given(data=st.binary(max_size=12), k=st.integers(0, 12), length=st.integers(0, 60))
def test_any_bytes_are_refused_or_the_code_of_what_they_decode_to(data, k, length):
    k = min(k, length)
    try:
        positions = decode(Blob(data), k, length)
    except ProtocolError:
        return
    assert bytes(encode(positions, length).view) == data
    assert positions.size == k


@quick
@given(drawn=sets(), seed=st.integers(0, 2**32 - 1), flips=st.integers(1, 3))
def test_a_code_with_changed_bits_is_refused_or_that_of_another_set(drawn, seed, flips):
    positions, length = drawn
    changed = bytearray(encode(positions, length).view)
    for bit in np.random.default_rng(seed).permutation(8 * len(changed))[:flips]:
        changed[bit // 8] ^= 1 << bit % 8
    with suppress(ProtocolError):
        others = decode(Blob(changed), positions.size, length)
        assert encode(others, length).view == changed
        assert others.tolist() != positions.tolist() or not changed


@pytest.mark.parametrize(("k", "length"), [(0, 5), (1, 1), (1, 7), (2, 6), (3, 12), (2, 11), (4, 9), (7, 7)])
def test_as_many_codes_are_accepted_as_there_are_sets(k, length):
    """All strings of up to two bytes, of which longer codes would not fit."""
    accepted = []
    for data in (b"", *(bytes([one]) for one in range(256)), *(number.to_bytes(2) for number in range(65_536))):
        with suppress(ProtocolError):
            accepted.append(tuple(decode(Blob(data), k, length).tolist()))
    assert sorted(accepted) == list(combinations(range(length), k))


@pytest.mark.parametrize("size", [0, 2, 5, 10_000_000])
def test_bytes_of_an_impossible_number_are_refused_before_they_are_read(monkeypatch, size):
    monkeypatch.setattr(np, "unpackbits", None)
    refused(bytes(size), 4, 40, f"4 of 40 positions has 3 to 3 bytes, got {size}")


def test_a_code_takes_no_more_memory_than_its_length_allows():
    """Ones throughout: more positions than there should be."""
    k, length = 10_000, 1_000_000
    longest = 10_684
    tracemalloc.start()
    try:
        refused(b"\xff" * longest, k, length, f"exactly {k} positions, got that of")
        assert tracemalloc.get_traced_memory()[1] < 30 * longest
    finally:
        tracemalloc.stop()


def test_another_number_of_positions_is_refused():
    for ends, count in (("1" + "1" + "0" + "001", 3), ("1" + "1" + "1" + "101", 5)):
        refused(octets("110001000111") + octets(ends), 4, 40, f"exactly 4 positions, got that of {count}")


@pytest.mark.parametrize("bit", [12, 13, 15])
def test_a_bit_after_the_last_remainder_is_refused(bit):
    changed = bytearray(code(3, 8, 9, 33, length=40))
    changed[bit // 8] |= 1 << bit % 8
    refused(changed, 4, 40, "unused bits must be zero")


def test_a_bit_or_byte_after_the_last_gap_is_refused():
    honest = code(3, 8, 9, 33, length=40)
    refused(honest[:2] + bytes([honest[2] | 0x80]), 4, 40, "exactly 4 positions, got that of 5")
    even = code(*range(7, 80, 10), length=80)  # of 4 to 6 bytes
    assert len(even) == 5
    refused(even + b"\0", 8, 80, "must end with a one")
    refused(even + b"\1", 8, 80, "exactly 8 positions, got that of 9")
    refused(even + b"\0\0", 8, 80, "8 of 80 positions has 4 to 6 bytes, got 7")


def test_a_position_beyond_the_last_is_refused():
    ones = octets("111" * 8)
    assert decode(Blob(ones + octets("1" * 8)), 8, 80).tolist() == [7, 15, 23, 31, 39, 47, 55, 63]
    assert decode(Blob(ones + octets("001" + "1" * 7)), 8, 80)[-1] == 79
    refused(ones + octets("0001" + "1" * 7), 8, 80, "positions must be below 80, got 87")
    refused(ones + octets("1" * 7 + "0" * 16 + "1"), 8, 80, "positions must be below 80, got 191")
    refused(ones + octets("1" * 7 + "0" * 17 + "1"), 8, 80, "has 4 to 6 bytes, got 7")


def test_compiled_and_plain_loops_agree(monkeypatch):
    mask = np.random.default_rng(0).random(3000) < 0.07
    positions = positions_of(mask)
    encoded = encode(positions, mask.size)
    monkeypatch.setattr(gaps, "compiled", lambda function: function)
    np.testing.assert_array_equal(positions_of(mask), np.flatnonzero(mask))
    assert encode(positions, mask.size).view == encoded.view
    np.testing.assert_array_equal(decode(encoded, positions.size, mask.size), positions)


@pytest.mark.parametrize("share", [0.0001, 0.01, 0.05, 0.1, 0.3, 0.34, 0.5])
def test_a_code_has_its_typical_size_near_the_entropy(share):
    length = 1_000_000
    k = round(share * length)
    size = len(encode(np.sort(np.random.default_rng(0).permutation(length)[:k]), length))
    assert size == pytest.approx(typical_size(k, length), rel=0.01, abs=2)
    entropy = -share * np.log2(share) - (1 - share) * np.log2(1 - share)
    assert entropy - 0.001 < 8 * size / length < 1.1 * entropy


@quick
@given(length=st.integers(1, 10**12), data=st.data())
def test_the_longest_code_is_the_shortest_that_any_width_of_remainders_allows(length, data):
    k = data.draw(st.integers(1, length))
    longest = [k * (width + 1) + ((length - k) >> width) for width in range(45)]
    assert longest[remainder_bits(k, length)] == min(longest)
