"""Products of public polynomials with a small secret one in Z_Q[x]/(x^2048 + 1), for Q = p1·p2.

Both primes are 1 mod 4096 and just below 2^25, so that products modulo each follow from number-theoretic transforms.

Polynomials are processed up to 64 at once, interleaved: row j of an array (2048 × polynomials) holds coefficient j of
each. The innermost loops run over neighbours in memory, which compilers turn into vector instructions. All arithmetic
is exact, so the number of polynomials, the processor and the number of threads change no result.

Numbers are 32-bit words. A residue has 25 bits, so sums of up to 128 of them fit: most additions need no reduction.
Constants are multiplied by Shoup's method: with w' = floor(2^32·w/p), a word x gives x·w − floor(x·w'/2^32)·p, which
lies in [0, 2p) for every x below 2^32. Nothing branches on a secret or takes it as an index.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from paraaegis.compiled import compiled
from paraaegis.errors import CryptoError

Words: TypeAlias = NDArray[np.uint32]

DEGREE = 2048
PRIMES = (33_550_337, 33_538_049)  # the largest two below 2^25 that are 1 mod 4096
MODULUS = PRIMES[0] * PRIMES[1]
ROOTS = (9_066, 31_815)  # the smallest ψ modulo each prime with ψ^2048 = −1
BITS = 25
LAZY = 64  # a product's residues are below LAZY·p
SPARE = 1024  # words to draw rejected places again: 80 are expected for 64 polynomials modulo both primes
_BLOCK = 64  # rows that the first levels of an inverse transform combine
_TILE = 256  # neighbours that the other levels process at once; with their 32 rows they fit in the first cache


@dataclass(frozen=True)
class Factors:
    """Numbers w modulo a prime, with w' = floor(2^32·w/p) for Shoup's method."""

    words: Words
    quotients: Words


@dataclass(frozen=True)
class Field:
    """The tables of one prime: powers of ψ and of 1/ψ, in bit-reversed order of their exponents."""

    prime: int
    powers: Factors
    inverses: Factors


@cache
def fields() -> tuple[Field, ...]:
    """Both primes with their tables, computed on first use."""
    return tuple(
        Field(prime, factors(_powers(root, prime), prime), factors(_powers(pow(root, -1, prime), prime), prime))
        for prime, root in zip(PRIMES, ROOTS, strict=True)
    )


def factors(numbers: NDArray[Any], prime: int) -> Factors:
    """Numbers in [0, p), prepared for multiplication."""
    words = numbers.astype(np.uint64)
    return Factors(words.astype(np.uint32), ((words << np.uint64(32)) // np.uint64(prime)).astype(np.uint32))


def shoup(number: int, prime: int) -> tuple[int, int]:
    """One number modulo a prime, prepared for multiplication."""
    return number % prime, (number % prime << 32) // prime


def reversed_bits(index: int) -> int:
    """The index whose 11 bits are those of `index` in reverse."""
    return int(f"{index:011b}"[::-1], 2)


def _powers(root: int, prime: int) -> NDArray[np.int64]:
    return np.array([pow(root, reversed_bits(index), prime) for index in range(DEGREE)])


def transform(polynomial: NDArray[np.int64]) -> tuple[Factors, ...]:
    """A polynomial's transform modulo each prime, divided by 2048: the factors that `multiply` takes.

    Number j of a transform is the value at ψ^(2·reversed_bits(j) + 1).
    """
    prepared = []
    for field in fields():
        values = (polynomial % field.prime).astype(np.uint32)
        compiled(_forward)(values, field.powers.words, field.powers.quotients, field.prime)
        prepared.append(factors(values.astype(np.int64) * pow(DEGREE, -1, field.prime) % field.prime, field.prime))
    return tuple(prepared)


def draw(words: Words, start: int, values: Words, prime: int) -> int:
    """Fill `values` with uniform residues from random words; returns the index of the first word that is not needed.

    Each place takes a 32-bit word, in order from `start` on, and keeps its top 25 bits. While places hold p or more,
    each of them takes another word, in ascending order of place. Up to `SPARE` such places are allowed for.
    """
    end: int = compiled(_draw)(words, start, values, np.empty(SPARE, dtype=np.uint32), prime)
    if end < 0:
        raise CryptoError(f"{words.size - start} words are too few to draw {values.size} residues; they are not random")
    return end


def multiply(values: Words, by: Factors, field: Field) -> None:
    """Turn the transforms of polynomials, interleaved, into their products with one polynomial.

    The results are coefficients in ascending order, below LAZY·p and not reduced.
    """
    inverses = field.inverses
    compiled(_multiply, _products, _columns)(
        values, by.words, by.quotients, inverses.words, inverses.quotients, field.prime
    )


def _draw(words: Any, start: Any, values: Any, places: Any, prime: Any) -> Any:
    """Negative if there are too few words or too many places to draw again. Branches are on public numbers."""
    p, shift, count, end = np.uint32(prime), np.uint32(32 - BITS), 0, start + values.size
    first = words[start:end]
    for i in range(first.size):
        x = first[i] >> shift
        values[i] = x
        if x >= p:
            if count == places.size:
                return -1
            places[count] = i
            count += 1
    while count:
        if end + count > words.size:
            return -1
        again, rejected = words[end : end + count], 0
        for k in range(again.size):
            x = again[k] >> shift
            values[places[k]] = x
            if x >= p:
                places[rejected] = places[k]
                rejected += 1
        end, count = end + count, rejected
    return end


def _forward(values: Any, powers: Any, quotients: Any, prime: Any) -> None:
    """Transform one polynomial (Cooley–Tukey). Each level adds 2p to the bound: p before, 23p after the eleventh."""
    p, p64 = np.uint32(prime), np.uint64(prime)
    groups, half = 1, DEGREE // 2
    while half:
        for group in range(groups):
            w, q = np.uint64(powers[groups + group]), np.uint64(quotients[groups + group])
            low = values[2 * group * half : (2 * group + 1) * half]
            high = values[(2 * group + 1) * half : (2 * group + 2) * half]
            for k in range(half):
                a, b = low[k], np.uint64(high[k])
                product = np.uint32(b * w - ((b * q) >> np.uint64(32)) * p64)
                low[k] = np.uint32(a + product)
                high[k] = np.uint32(a + np.uint32(2) * p - product)
        groups, half = 2 * groups, half // 2
    for k in range(values.size):
        values[k] %= p


def _multiply(values: Any, words: Any, quotients: Any, inverses: Any, inverse_quotients: Any, prime: Any) -> None:
    _products(values, words, quotients, inverses, inverse_quotients, prime)
    _columns(values, inverses, inverse_quotients, prime)


def _products(values: Any, words: Any, quotients: Any, inverses: Any, inverse_quotients: Any, prime: Any) -> None:
    """Multiply place by place, then run the first six levels of the inverse transform (Gentleman–Sande).

    They combine 64 neighbouring rows, which fit in the first cache. A level doubles the bound on the sums and leaves
    differences below 2p: from 2p to 128p, which is below 2^32.
    """
    p64, width = np.uint64(prime), values.size // DEGREE
    for block in range(DEGREE // _BLOCK):
        part = values[block * _BLOCK * width : (block + 1) * _BLOCK * width]
        for row in range(_BLOCK):
            line = part[row * width : (row + 1) * width]
            w, q = np.uint64(words[_BLOCK * block + row]), np.uint64(quotients[_BLOCK * block + row])
            for k in range(line.size):
                x = np.uint64(line[k])
                line[k] = np.uint32(x * w - ((x * q) >> np.uint64(32)) * p64)
        bound, half, groups = np.uint32(2 * prime), width, _BLOCK // 2
        while groups:
            for group in range(groups):
                index = (DEGREE // _BLOCK + block) * groups + group
                w, q = np.uint64(inverses[index]), np.uint64(inverse_quotients[index])
                low = part[2 * group * half : (2 * group + 1) * half]
                high = part[(2 * group + 1) * half : (2 * group + 2) * half]
                for k in range(low.size):
                    a, b = low[k], high[k]
                    low[k] = np.uint32(a + b)
                    x = np.uint64(np.uint32(a + bound - b))
                    high[k] = np.uint32(x * w - ((x * q) >> np.uint64(32)) * p64)
            bound, half, groups = np.uint32(2 * bound), 2 * half, groups // 2


def _columns(values: Any, inverses: Any, inverse_quotients: Any, prime: Any) -> None:
    """Run the last five levels of the inverse transform, which combine rows that are 64 or more apart.

    One reduction takes the bound from 2^32 to 2p, and five levels take it to 64p.
    """
    p64, reciprocal = np.uint64(prime), np.uint64((1 << 32) // prime)
    rows = DEGREE // _BLOCK
    size = values.size // rows
    for start in range(0, size, _TILE):
        stop = min(start + _TILE, size)
        for row in range(rows):
            line = values[row * size + start : row * size + stop]
            for k in range(line.size):
                x = np.uint64(line[k])
                line[k] = np.uint32(x - ((x * reciprocal) >> np.uint64(32)) * p64)
        bound, half = np.uint32(2 * prime), 1
        while half < rows:
            for pair in range(rows // 2):
                group = pair // half
                index, first = rows // 2 // half + group, pair + group * half
                w, q = np.uint64(inverses[index]), np.uint64(inverse_quotients[index])
                low = values[first * size + start : first * size + stop]
                high = values[(first + half) * size + start : (first + half) * size + stop]
                for k in range(low.size):
                    a, b = low[k], high[k]
                    low[k] = np.uint32(a + b)
                    x = np.uint64(np.uint32(a + bound - b))
                    high[k] = np.uint32(x * w - ((x * q) >> np.uint64(32)) * p64)
            bound, half = np.uint32(2 * bound), 2 * half
