"""A ciphertext that is not whole, not of its place or not of its key is refused."""

import numpy as np
import pytest

from ckks_secrets import HEADER, PRECISE, SECRET, STRANGER, draw
from paraaegis.crypto.ckks import CipherSum
from paraaegis.errors import CryptoError
from paraaegis.types import Blob


def flipped(blob, at, bit=0):
    changed = bytearray(blob.view)
    changed[at] ^= 1 << bit
    return Blob(changed)


LENGTH = PRECISE.chunk + 100  # two chunks
STEPS = draw(0, LENGTH)
GOOD = SECRET.encrypt(STEPS, 3)
OTHER = SECRET.encrypt(draw(1, LENGTH), 3)
BAD = {
    "another key": STRANGER.encrypt(STEPS, 3),
    "another key's last chunk": (GOOD[0], STRANGER.encrypt(STEPS, 3)[1]),
    "last chunk cut": (GOOD[0], Blob(bytes(GOOD[1].view)[:-1])),
    "first chunk cut": (Blob(bytes(GOOD[0].view)[: len(GOOD[0]) // 2]), GOOD[1]),
    "header cut": (GOOD[0], Blob(bytes(GOOD[1].view)[: HEADER - 1])),
    "sizes cut": (GOOD[0], Blob(bytes(GOOD[1].view)[:HEADER])),
    "empty chunk": (GOOD[0], Blob(b"")),
    "surplus bytes": (GOOD[0], Blob(bytes(GOOD[1].view) + b"\0")),
    "missing chunk": GOOD[:1],
    "surplus chunk": (*GOOD, GOOD[1]),
    "no chunk": (),
    "reordered": GOOD[::-1],
    "repeated": (GOOD[0], GOOD[0]),
    "another length": SECRET.encrypt(STEPS[:-1], 3),
    "foreign bytes": (GOOD[0], Blob(b"\x17" * len(GOOD[1]))),
    "another profile": (GOOD[0], Blob(bytes(GOOD[1].view).replace(b"precise\0", b"another\0", 1))),
    "grid steps": (GOOD[0], Blob(STEPS[:100].data)),
    "noise for a ciphertext": (GOOD[0], Blob(bytes(GOOD[1].view)[: HEADER + 4] + bytes(len(GOOD[1]) - HEADER - 4))),
}


@pytest.mark.parametrize("before", [0, 1, 2])
@pytest.mark.parametrize("name", BAD)
def test_a_bad_upload_is_refused_and_leaves_the_sum_as_it_was(name, before):
    total = CipherSum(PRECISE, LENGTH)
    for upload in (GOOD, OTHER)[:before]:
        total.add(upload)
    if name == "another key" and before == 0:
        total.add(BAD[name])  # the keyless server cannot know whose key is right until a second one comes
        with pytest.raises(CryptoError, match="another CKKS key"):
            total.add(GOOD)
        return
    with pytest.raises(CryptoError):
        total.add(BAD[name])
    total.add(GOOD)
    expected = STEPS + sum([STEPS, draw(1, LENGTH)][:before])
    np.testing.assert_array_equal(SECRET.decrypt(total.close(), LENGTH), expected)


@pytest.mark.parametrize("name", [name for name in BAD if name not in ("another key", "grid steps")])
def test_a_bad_aggregate_is_refused(name):
    with pytest.raises(CryptoError):
        SECRET.decrypt(BAD[name], LENGTH)


def test_every_bit_of_a_header_counts():
    (chunk,) = SECRET.encrypt(STEPS[:5000], 1)
    for at in range(HEADER + 8):
        for bit in (0, 5):
            with pytest.raises(CryptoError):
                SECRET.decrypt([flipped(chunk, at, bit)], 5000)


def test_a_flipped_bit_anywhere_in_an_upload_is_refused():
    """Else a byte spoilt on the way becomes a garbage model at every client, without a word."""
    (chunk,) = SECRET.encrypt(STEPS[:4096], 1)
    places = np.random.default_rng(0).integers(HEADER + 4, len(chunk), 60)
    accepted = []
    for at in places:
        total = CipherSum(PRECISE, 4096)
        try:
            total.add([flipped(chunk, at, int(at) % 8)])
        except CryptoError:
            continue
        accepted.append(int(at))
    assert accepted == []


def test_what_was_added_can_be_subtracted():
    total = CipherSum(PRECISE, LENGTH)
    for upload in (GOOD, OTHER):
        total.add(upload)
    total.subtract(OTHER)
    np.testing.assert_array_equal(SECRET.decrypt(total.close(), LENGTH), STEPS)
