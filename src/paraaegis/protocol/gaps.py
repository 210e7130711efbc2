"""Sets of positions as Golomb–Rice codes of the gaps between them.

A gap is the number of positions left out before one of the set. Its lowest bits, as many as `remainder_bits` says, are
its remainder, the others its quotient. The code holds all remainders, then for each quotient that many zeros and a one.
Both parts start with the lowest bit of a byte and are filled up with zeros. A set has one code, and a code one set.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from paraaegis.compiled import compiled
from paraaegis.crypto.residues import readonly
from paraaegis.errors import ProtocolError
from paraaegis.types import Blob, Mask

Positions = NDArray[np.int64]  # ascending


def remainder_bits(k: int, length: int) -> int:
    """The bits of each remainder in the code of k of `length` positions: those for which the longest code is shortest.

    Up to half of the positions, if they are random, the code is then at most 9% longer than their entropy.
    """
    return max(0, ((length - k) // max(1, k)).bit_length() - 1)


def typical_size(k: int, length: int) -> float:
    """The bytes of the code of k of `length` random positions, on average."""
    if k == 0:
        return 0.0
    bits = remainder_bits(k, length)
    another_zero: float = (1 - k / length) ** 2**bits  # the probability that a quotient of at least q is above q
    return k * (bits + 1 / (1 - another_zero)) / 8


def positions_of(mask: Mask) -> Positions:
    """The positions at which a mask is True: `np.flatnonzero`, which is several times slower unless these are few."""
    positions = np.empty(np.count_nonzero(mask) + 1, dtype=np.int64)
    compiled(_collect)(readonly(mask.view(np.uint8)), positions)
    return positions[:-1]


def encode(positions: Positions, length: int) -> Blob:
    """The code of distinct positions below `length`, in ascending order."""
    bits = remainder_bits(positions.size, length)
    start, _, most = _sizes(positions.size, length, bits)
    code = np.zeros(most, dtype=np.uint8)
    end = compiled(_encode)(positions, bits, code[:start], code[start:])
    return Blob(code[: start + _bytes(end)].data)


def decode(code: Blob, k: int, length: int) -> Positions:
    """The k positions below `length` in a code; refuses any bytes except those that `encode` returns for them."""
    bits = remainder_bits(k, length)
    start, least, most = _sizes(k, length, bits)
    if not least <= len(code) <= most:
        raise ProtocolError(f"the code of {k} of {length} positions has {least} to {most} bytes, got {len(code)}")
    octets = readonly(np.frombuffer(code.view, dtype=np.uint8))
    positions = positions_of(np.unpackbits(octets[start:], bitorder="little").view(np.bool_))
    if positions.size != k:
        raise ProtocolError(f"expected the code of exactly {k} positions, got that of {positions.size}")
    unused = k * bits % 8
    if k and (octets[-1] == 0 or (unused and octets[start - 1] >> unused)):
        raise ProtocolError(f"the code of {k} of {length} positions must end with a one, and unused bits must be zero")
    if bits:  # otherwise each position is the place of its one
        compiled(_decode)(octets[:start], bits, positions)
    if k and positions[-1] >= length:
        raise ProtocolError(f"positions must be below {length}, got {positions[-1]}")
    return positions


def _sizes(k: int, length: int, bits: int) -> tuple[int, int, int]:
    """The bytes of the remainders, of the shortest code and of the longest. The gaps' sum is at most length − k."""
    remainders = _bytes(k * bits)
    zeros = (length - k) >> bits if k else 0
    return remainders, remainders + _bytes(k), remainders + _bytes(k + zeros)


def _bytes(bits: int) -> int:
    return -(-bits // 8)


def _collect(flags: Any, positions: Any) -> None:
    """Without a branch that depends on a flag. `positions` has one place more than there are flags set."""
    found = np.int64(0)
    for i in range(flags.size):
        positions[found] = i
        found += np.int64(flags[i])


def _encode(positions: Any, bits: Any, remainders: Any, quotients: Any) -> Any:
    """Write both parts to arrays of zeros; returns the number of bits in the second."""
    held, filled, written = np.int64(0), 0, 0  # bits that do not yet fill a byte
    last, end = -1, 0
    for i in range(positions.size):
        gap = positions[i] - last - 1
        last = positions[i]
        end += (gap >> bits) + 1
        quotients[(end - 1) >> 3] |= np.uint8(1 << ((end - 1) & 7))
        held |= (gap & ((1 << bits) - 1)) << filled
        filled += bits
        while filled >= 8:
            remainders[written] = np.uint8(held & 255)
            held >>= 8
            filled -= 8
            written += 1
    if filled > 0:
        remainders[written] = np.uint8(held)
    return end


def _decode(remainders: Any, bits: Any, positions: Any) -> None:
    """Replace the places of the ones in the second part by the positions."""
    held, filled, read = np.int64(0), 0, 0
    total = 0  # of the remainders so far
    for i in range(positions.size):
        while filled < bits:
            held |= np.int64(remainders[read]) << filled
            filled += 8
            read += 1
        total += held & ((1 << bits) - 1)
        held >>= bits
        filled -= bits
        positions[i] = ((positions[i] - i) << bits) + total + i
