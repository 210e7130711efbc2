"""Coefficients modulo p1·p2 as pairs of 25-bit residues: errors, masks, sums and the wire format.

Pairs have the shape (2, n), with the residues modulo p1 first. All loops over them are free of branches.

On the wire a coefficient has 50 bits, r1 + r2·2^25, spread over three planes so that no word holds parts of several:
the low 32 bits of each coefficient, little-endian; then bits 32 to 47 of each; then the top two bits of each, four
coefficients to a byte, the first in the lowest bits. Unused bits of the last byte are zero.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from paraaegis.compiled import compiled
from paraaegis.crypto.ring import BITS, LAZY, MODULUS, PRIMES, Words, shoup
from paraaegis.errors import CryptoError
from paraaegis.types import Buffer

Planes: TypeAlias = tuple[NDArray[np.uint32], NDArray[np.uint16], NDArray[np.uint8]]

ERROR_BITS = 42  # random bits of one error
BOUND = ERROR_BITS // 2  # the largest absolute value of one error
SCALE_BITS = 10  # messages are multiplied by 2^10; summed errors must stay below half of that
DIGIT_BITS = 20  # bits of a message's lower digit
_TOP = np.uint32(BITS - 2)  # where the two bits of the last plane stand in r2
_LOW = np.uint32((1 << BITS) - 1)
_BELOW = np.uint64((1 << ERROR_BITS) - 1)
_PAIRS = np.uint64(0x5555555555555555)
_NIBBLES = np.uint64(0x3333333333333333)
_BYTES = np.uint64(0x0F0F0F0F0F0F0F0F)
_SUM = np.uint64(0x0101010101010101)


def packed_size(count: int) -> int:
    """The number of bytes of `count` coefficients: 6.25 each, rounded up."""
    return 6 * count + -(-count // 4)


def padded(count: int) -> int:
    """The length of the arrays that `pack` and `unpack` take for `count` coefficients: the next multiple of four."""
    return -(-count // 4) * 4


def readonly(array: NDArray[Any]) -> NDArray[Any]:
    """A read-only view. Loops are compiled once for these and once for writable arrays, so inputs should all be one."""
    view = array.view()
    view.flags.writeable = False
    return view


def add_errors(stream: Callable[[int], Buffer], pairs: Words) -> None:
    """Add to each pair an error plus 21: how many of the low 42 bits of the stream's next 64-bit word are ones.

    An error is a centred binomial of 21 + 21 bits: within ±21, of variance 10.5.
    """
    compiled(_add_errors)(readonly(np.frombuffer(stream(8 * pairs.shape[1]), dtype="<u8")), *pairs)


def binomials(stream: Callable[[int], bytes], count: int) -> NDArray[np.int64]:
    """Draw numbers like the errors: within ±21, of variance 10.5. They are the secrets."""
    pairs = np.zeros((2, count), dtype=np.uint32)
    add_errors(stream, pairs)
    first, _ = pairs.astype(np.int64) - BOUND
    return first


def encode(masks: Words, low: Words, high: Words, offset: int, out: NDArray[np.uint8]) -> None:
    """Add low + high·2^30 − offset to products of the ring, with errors or without; reduce; write the sums to `out`.

    `low` must be below 2^30 + 2^10 and `high` below 2^20. `masks` is padded, and used as work space.
    """
    masks[:, low.size : padded(low.size)] = 0
    constants = [(*shoup(1 << (DIGIT_BITS + SCALE_BITS), prime), -offset % prime, prime) for prime in PRIMES]
    compiled(_encode, _mask, _pack)(*masks, low, high, *constants, *_planes(out, low.size))


def pack(pairs: Words, count: int, out: NDArray[np.uint8]) -> None:
    """Write the first `count` coefficients to `out` in the wire format; those up to `padded(count)` become zero."""
    pairs[:, count : padded(count)] = 0
    compiled(_pack)(*pairs, *_planes(out, count))


def unpack(buffer: Buffer, count: int, pairs: Words) -> None:
    """Read `count` coefficients into the start of `pairs`. Residues that are not reduced are refused."""
    pairs[:, count : padded(count)] = 0
    _check(*compiled(_unpack)(*_received(buffer, count), *pairs[:, : padded(count)]))


def add(totals: Words, buffer: Buffer, count: int, pairs: Words, subtract: bool = False) -> None:
    """Add `count` coefficients to totals, or subtract them. Totals are padded and stay as they are if that is refused.

    `pairs` is work space.
    """
    pairs[:, count : padded(count)] = 0
    rows = (*pairs[:, : padded(count)], *totals)  # each contiguous, which whole arrays of pairs need not be
    _check(*compiled(_merge, _unpack, _add)(*_received(buffer, count), *rows, PRIMES, subtract))


def _check(largest1: int, largest2: int, unused: int) -> None:
    if largest1 >= PRIMES[0] or largest2 >= PRIMES[1] or unused:
        raise CryptoError(
            f"masked values must be residues below {PRIMES[0]} and {PRIMES[1]} with unused bits zero, got residues up "
            f"to {largest1} and {largest2}; the chunk is damaged or of another kind"
        )


def _received(buffer: Buffer, count: int) -> list[NDArray[Any]]:
    """The planes of received bytes, which may lie at any address."""
    octets = readonly(np.frombuffer(buffer, dtype=np.uint8))
    return [readonly(np.require(plane, requirements="A")) for plane in _planes(octets, count)]


def _planes(octets: NDArray[np.uint8], count: int) -> Planes:
    return octets[: 4 * count].view(np.uint32), octets[4 * count : 6 * count].view(np.uint16), octets[6 * count :]


def lift(pairs: Words, products: Words, messages: NDArray[np.int64]) -> tuple[int, int]:
    """Subtract products of the ring from sums and split the centred results into 2^10·message + error.

    Errors are taken from [−512, 512). Returns the largest absolute error and the sum of their squares.
    """
    found = compiled(_lift)(*pairs, *products, messages, *shoup(pow(PRIMES[0], -1, PRIMES[1]), PRIMES[1]))
    return int(found[0]), int(found[1])


def _add_errors(words: Any, first: Any, second: Any) -> None:
    for i in range(words.size):  # compilers know these lines and use the processor's own count of ones
        x = words[i] & _BELOW
        x = x - ((x >> np.uint64(1)) & _PAIRS)
        x = (x & _NIBBLES) + ((x >> np.uint64(2)) & _NIBBLES)
        x = (x + (x >> np.uint64(4))) & _BYTES
        ones = np.uint32((x * _SUM) >> np.uint64(56))
        first[i] += ones
        second[i] += ones


def _mask(values: Any, low: Any, high: Any, word: Any, quotient: Any, constant: Any, prime: Any) -> None:
    """The sum is below 65p (product and error) + 2p + 33p (`low`) + p (the constant), which is less than 2^32."""
    p, p64, reciprocal = np.uint32(prime), np.uint64(prime), np.uint64((1 << 32) // prime)
    w, q, c = np.uint64(word), np.uint64(quotient), np.uint32(constant)
    for i in range(values.size):
        x = np.uint64(high[i])
        y = np.uint32(x * w - ((x * q) >> np.uint64(32)) * p64)
        x = np.uint64(np.uint32(values[i] + y + low[i] + c))
        y = np.uint32(x - ((x * reciprocal) >> np.uint64(32)) * p64)  # below 2p
        values[i] = min(y, np.uint32(y - p))


def _encode(first: Any, second: Any, low: Any, high: Any, one: Any, two: Any, bits: Any, middle: Any, top: Any) -> None:
    _mask(first[: low.size], low, high, *one)
    _mask(second[: low.size], low, high, *two)
    _pack(first, second, bits, middle, top)


def _pack(first: Any, second: Any, low: Any, middle: Any, top: Any) -> None:
    for i in range(low.size):
        x = np.uint64(first[i]) | (np.uint64(second[i]) << np.uint64(BITS))
        low[i] = np.uint32(x)
        middle[i] = np.uint16(x >> np.uint64(32))
    for i in range(top.size):
        a, b = second[4 * i] >> _TOP, second[4 * i + 1] >> _TOP
        c, d = second[4 * i + 2] >> _TOP, second[4 * i + 3] >> _TOP
        top[i] = np.uint8(a | (b << np.uint32(2)) | (c << np.uint32(4)) | (d << np.uint32(6)))


def _unpack(low: Any, middle: Any, top: Any, first: Any, second: Any) -> Any:
    """Returns the largest residue modulo each prime, and the unused bits."""
    for i in range(low.size):
        first[i] = low[i] & _LOW
        second[i] = (low[i] >> np.uint32(BITS)) | (np.uint32(middle[i]) << np.uint32(32 - BITS))
    for i in range(top.size):
        x = np.uint32(top[i])
        second[4 * i] |= (x & np.uint32(3)) << _TOP
        second[4 * i + 1] |= ((x >> np.uint32(2)) & np.uint32(3)) << _TOP
        second[4 * i + 2] |= ((x >> np.uint32(4)) & np.uint32(3)) << _TOP
        second[4 * i + 3] |= (x >> np.uint32(6)) << _TOP
    largest1 = largest2 = unused = np.uint32(0)
    for i in range(low.size):
        largest1, largest2 = max(largest1, first[i]), max(largest2, second[i])
    for i in range(low.size, second.size):
        unused |= second[i]
    return largest1, largest2, unused


def _merge(
    low: Any, middle: Any, top: Any, first: Any, second: Any, total1: Any, total2: Any, primes: Any, subtract: Any
) -> Any:
    """Add what is unpacked to totals, both reduced, unless it is refused. Returns what `_unpack` does."""
    largest1, largest2, unused = _unpack(low, middle, top, first, second)
    if largest1 < primes[0] and largest2 < primes[1] and unused == 0:
        _add(total1, first, primes[0], subtract)
        _add(total2, second, primes[1], subtract)
    return largest1, largest2, unused


def _add(total: Any, residues: Any, prime: Any, subtract: Any) -> None:
    p = np.uint32(prime)
    for i in range(total.size):
        x = np.uint32(total[i] + (p - residues[i] if subtract else residues[i]))
        total[i] = min(x, np.uint32(x - p))  # x − p wraps to more than x where that is reduced


def _lift(first: Any, second: Any, mask1: Any, mask2: Any, messages: Any, word: Any, quotient: Any) -> Any:
    """Garner's method: c = c1 + p1·((c2 − c1)/p1 mod p2). Reduced residues + 64p − a product lie below 65p."""
    p1, p2 = np.uint32(PRIMES[0]), np.uint32(PRIMES[1])
    reciprocal1, reciprocal2 = np.uint64((1 << 32) // PRIMES[0]), np.uint64((1 << 32) // PRIMES[1])
    w, q = np.uint64(word), np.uint64(quotient)
    worst = squares = np.int64(0)
    for i in range(messages.size):
        x = np.uint64(np.uint32(first[i] + np.uint32(LAZY * PRIMES[0]) - mask1[i]))
        c1 = np.uint32(x - ((x * reciprocal1) >> np.uint64(32)) * np.uint64(p1))
        c1 = min(c1, np.uint32(c1 - p1))
        x = np.uint64(np.uint32(second[i] + np.uint32((LAZY + 2) * PRIMES[1]) - mask2[i] - c1))  # c1 < p1 < 2·p2
        x = np.uint64(np.uint32(x - ((x * reciprocal2) >> np.uint64(32)) * np.uint64(p2)))
        y = np.uint32(x * w - ((x * q) >> np.uint64(32)) * np.uint64(p2))
        y = min(y, np.uint32(y - p2))
        whole = np.int64(c1) + np.int64(PRIMES[0]) * np.int64(y)
        whole -= np.int64(MODULUS) if whole > np.int64(MODULUS // 2) else np.int64(0)
        message = (whole + np.int64(1 << (SCALE_BITS - 1))) >> np.int64(SCALE_BITS)
        error = whole - (message << np.int64(SCALE_BITS))
        messages[i] = message
        worst = max(worst, abs(error))
        squares += error * error
    return worst, squares
