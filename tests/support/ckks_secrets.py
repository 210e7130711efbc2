"""A CKKS secret, a stranger's, and what is encrypted under them."""

import numpy as np

from paraaegis.crypto.ckks import PROFILES, Secret, new_key

PRECISE = PROFILES["precise"]
KEY = new_key(PRECISE)
SECRET = Secret(PRECISE, KEY)
STRANGER = Secret(PRECISE, new_key(PRECISE))
HEADER = 36


def draw(seed, length, peak=10**8):
    return np.random.default_rng(seed).integers(-peak, peak, length, endpoint=True)
