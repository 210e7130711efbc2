"""A mask hides one vector, whether it was computed before or while it is used."""

import numpy as np
import pytest

from paraaegis.crypto.rlwe import PROFILES, encrypt, new_mask, new_secret, precompute
from paraaegis.errors import CryptoError

WIDE = PROFILES["wide"]
SEED, ENTROPY = bytes(range(32)), bytes(range(32, 64))
BY_PROFILE = pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)


def ready(profile, length, *given):
    return precompute(new_mask(SEED, *given), profile, length)


def raw(chunks):
    return [bytes(chunk.view) for chunk in chunks]


@BY_PROFILE
@pytest.mark.parametrize("length", [0, 1, 2, 4097, 131_072, 131_075, 262_145])
def test_a_mask_computed_ahead_gives_the_same_bytes(profile, length):
    steps, given = np.arange(length) % 1001 - 500, (new_secret(), ENTROPY)
    at_once = raw(encrypt(profile, steps, 3, new_mask(SEED, *given)))
    assert raw(encrypt(profile, steps, 3, ready(profile, length, *given))) == at_once


@pytest.mark.parametrize("make", [lambda: new_mask(SEED), lambda: ready(WIDE, 5)], ids=["now", "ahead"])
def test_a_mask_is_used_once(make):
    mask, steps = make(), np.arange(5)
    encrypt(WIDE, steps, 1, mask)
    for again in (lambda: encrypt(WIDE, steps, 1, mask), lambda: precompute(mask, WIDE, 5)):
        with pytest.raises(CryptoError, match="masks are single-use"):
            again()


def test_a_mask_cannot_be_used_in_both_forms():
    mask = new_mask(SEED)
    precompute(mask, WIDE, 5)
    with pytest.raises(CryptoError, match="masks are single-use"):
        encrypt(WIDE, np.arange(5), 1, mask)


@pytest.mark.parametrize("length", [4, 6, WIDE.chunk + 5])
def test_a_mask_for_another_number_of_values_is_refused(length):
    with pytest.raises(CryptoError, match="computed for 5 values and cannot hide any other number"):
        encrypt(WIDE, np.zeros(length, dtype=np.int64), 1, ready(WIDE, 5))


def test_masks_have_secrets_of_their_own():
    masks = [new_mask(SEED), ready(WIDE, 5), new_mask(SEED)]
    assert len({mask.secret.tobytes() for mask in masks}) == 3
    assert len({raw(encrypt(WIDE, np.zeros(5, dtype=np.int64), 1, mask))[0] for mask in masks}) == 3
