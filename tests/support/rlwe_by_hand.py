"""A second implementation of the RLWE cipher, by Python's integers and from the definitions alone."""

from __future__ import annotations

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from paraaegis.crypto.kdf import derive

N = 2048
P = 33_550_337, 33_538_049
Q = P[0] * P[1]
PSI = 9_066, 31_815


def stream(key):
    return Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor().update


def number(update, size):
    return int.from_bytes(update(bytes(size)), "little")


def secret_of(entropy):
    update = stream(derive(entropy, "rlwe secret"))
    return [bin(number(update, 8) % 2**42).count("1") - 21 for _ in range(N)]


def uniform(update, count, prime):
    places, drawn = list(range(count)), {}
    while places:
        drawn |= {place: number(update, 4) >> 7 for place in places}
        places = [place for place in places if drawn[place] >= prime]
    return [drawn[place] for place in range(count)]


def from_values(values, prime, psi):
    """The polynomial that takes these values at ψ^(2r + 1), r their index with its 11 bits reversed."""
    points = np.array([pow(psi, 2 * int(f"{i:011b}"[::-1], 2) + 1, prime) for i in range(N)])
    inverses, powers = np.array([pow(int(point), -1, prime) for point in points]), np.ones(N, dtype=np.int64)
    coefficients = []
    for _ in range(N):
        coefficients.append(int((np.array(values) * powers % prime).sum()) * pow(N, -1, prime) % prime)
        powers = powers * inverses % prime
    return coefficients


def joined(first, second):
    """The number below Q with these residues."""
    return (first + P[0] * ((second - first) * pow(P[0], -1, P[1]) % P[1])) % Q


def public_polynomials(seed, index, polynomials):
    update = stream(derive(seed, "rlwe public", index, polynomials))
    drawn = [uniform(update, N * polynomials, prime) for prime in P]
    return [
        [
            joined(*pair)
            for pair in zip(*(from_values(drawn[i][k::polynomials], P[i], PSI[i]) for i in (0, 1)), strict=True)
        ]
        for k in range(polynomials)
    ]


def coefficient(a, s, j):
    """Coefficient j of a·s in Z_Q[x]/(x^N + 1), by the schoolbook."""
    below = sum(a[i] * s[j - i] for i in range(j + 1))
    return (below - sum(a[i] * s[N + j - i] for i in range(j + 1, N))) % Q


def messages(lanes, steps):
    """The integers that a chunk's coefficients carry."""
    if lanes == 1:
        return list(steps)
    values = [round(step / 32) for step in steps]  # halves to even
    count = -(-len(values) // 2)
    values += [0] * (2 * count - len(values))
    return [values[i] + 2**20 * values[count + i] for i in range(count)]


def masked(lanes, steps, secret, seed, entropy, index=0, only=None):
    """The coefficients of chunk `index` modulo Q, at some places or all, by place."""
    carried = messages(lanes, steps)
    polynomials = -(-len(carried) // N)
    public = public_polynomials(seed, index, polynomials)
    update = stream(derive(entropy, "rlwe errors", index))
    errors = [bin(number(update, 8) % 2**42).count("1") - 21 for _ in carried]
    return {
        i: (coefficient(public[i % polynomials], secret, i // polynomials) + errors[i] + 1024 * carried[i]) % Q
        for i in (range(len(carried)) if only is None else only)
    }


def packed(coefficients):
    """Coefficients below Q in the wire format."""
    words = [c % P[0] + (c % P[1] << 25) for c in coefficients]
    low = b"".join((word % 2**32).to_bytes(4, "little") for word in words)
    middle = b"".join((word >> 32 & 0xFFFF).to_bytes(2, "little") for word in words)
    fours = [words[i : i + 4] for i in range(0, len(words), 4)]
    return low + middle + bytes(sum((word >> 48) << 2 * i for i, word in enumerate(four)) for four in fours)


def unpacked(data, count):
    """Coefficients below Q from the wire format."""
    result = []
    for i in range(count):
        word = int.from_bytes(data[4 * i : 4 * i + 4], "little")
        word += int.from_bytes(data[4 * count + 2 * i : 4 * count + 2 * i + 2], "little") << 32
        word += (data[6 * count + i // 4] >> 2 * (i % 4) & 3) << 48
        result.append(joined(word % 2**25, word >> 25))
    return result
