"""Sorting indices by random numbers: uniform numbers need two passes over buckets, on all cores."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paraaegis.compiled import compiled
from paraaegis.crypto.streams import keystream
from paraaegis.fixed_point import slices
from paraaegis.parallel import parallel_map
from paraaegis.types import Order

_MOST_BUCKET_BITS = 10  # more buckets would be slower to write to than their sorting gains
_IN_BUCKET_BITS = 12  # with fewer numbers in a bucket, what is done once per bucket would count
_SECTION = 1 << 19  # numbers that a thread deals to buckets at once
_GROUP = 32  # buckets that a thread sorts at once
_PIECE = 1 << 13  # numbers drawn at once: larger buffers are fresh pages each time, which take longer than the cipher


def sorted_indices(key: bytes, length: int, bits: int) -> Order:
    """The indices below `length` in ascending order of the words number·2^bits + index, modulo 2^64.

    The numbers are little-endian 64-bit words of the keystream. They are drawn twice, which costs less than the memory
    to keep them would. `bits` is enough for any index.
    """
    sections, top = list(slices(length, _SECTION)), _bucket_bits(length)
    counts = np.zeros((max(1, len(sections)), 1 << top), dtype=np.int64)
    words = np.empty(length, dtype=np.uint64)

    def count(section: int, span: slice) -> None:
        for _, numbers in _drawn(key, span):
            compiled(_count)(numbers, bits, 64 - top, counts[section])

    parallel_map(count, sections)
    ends = np.cumsum(counts.T).reshape(1 << top, -1)  # bucket by bucket, and in each, section by section
    places = (ends - counts.T).T.copy()

    def deal(section: int, span: slice) -> None:
        for start, numbers in _drawn(key, span):
            compiled(_deal)(numbers, start, bits, 64 - top, places[section], words)

    parallel_map(deal, sections)
    bounds = np.append(0, ends[:, -1])

    def sort(_: int, group: slice) -> None:
        part = bounds[group.start : group.stop + 1]
        space = np.empty(np.diff(part).max(), dtype=np.uint64)
        following = (length >> top).bit_length()  # for one or two ranks per number in a bucket
        ranks = np.empty(1 << following, dtype=np.int64)
        compiled(_sort)(words, part, space, ranks, 64 - top - following, bits, words.view(np.int64))

    parallel_map(sort, slices(1 << top, _GROUP))
    return words.view(np.int64)


def _bucket_bits(length: int) -> int:
    """How many of a word's top bits are the number of its bucket; at least one, as words cannot be shifted by 64."""
    return min(max(length.bit_length() - _IN_BUCKET_BITS, 1), _MOST_BUCKET_BITS)


def _drawn(key: bytes, span: slice) -> Iterator[tuple[int, NDArray[np.uint64]]]:
    """The numbers of a span that starts at a whole block, in pieces with the index of their first."""
    stream = keystream(key, span.start // 2)
    for start in range(span.start, span.stop, _PIECE):
        size = min(_PIECE, span.stop - start)
        yield start, np.frombuffer(stream(8 * size), dtype="<u8")


def _count(numbers: Any, bits: Any, shift: Any, counts: Any) -> None:
    for i in range(numbers.size):
        counts[np.int64((numbers[i] << np.uint64(bits)) >> np.uint64(shift))] += 1


def _deal(numbers: Any, start: Any, bits: Any, shift: Any, places: Any, words: Any) -> None:
    for i in range(numbers.size):
        word = (numbers[i] << np.uint64(bits)) | np.uint64(start + i)
        bucket = np.int64(word >> np.uint64(shift))
        words[places[bucket]] = word
        places[bucket] += 1


def _sort(words: Any, bounds: Any, space: Any, ranks: Any, shift: Any, bits: Any, indices: Any) -> None:
    """Sort each bucket by its next bits and then by insertion: few words share them. `indices` may be `words`."""
    mask = np.uint64(ranks.size - 1)
    for bucket in range(bounds.size - 1):
        part = words[bounds[bucket] : bounds[bucket + 1]]
        ranks[:] = 0
        for i in range(part.size):
            ranks[np.int64((part[i] >> np.uint64(shift)) & mask)] += 1
        total = np.int64(0)
        for rank in range(ranks.size):
            count = ranks[rank]
            ranks[rank] = total
            total += count
        for i in range(part.size):
            digit = np.int64((part[i] >> np.uint64(shift)) & mask)
            space[ranks[digit]] = part[i]
            ranks[digit] += 1
        for i in range(1, part.size):
            word, j = space[i], i
            while j > 0 and space[j - 1] > word:
                space[j] = space[j - 1]
                j -= 1
            space[j] = word
        for i in range(part.size):
            indices[bounds[bucket] + i] = np.int64(space[i] & np.uint64((1 << bits) - 1))
