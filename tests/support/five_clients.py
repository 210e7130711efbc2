"""Five clients of any method, with updates and weights whose means are exact on the grid."""

import numpy as np
import pytest

from hand import Hand, mean

LENGTH = 24
UPDATES = np.round(np.random.default_rng(0).normal(size=(5, 3, LENGTH)) * 64) / 64
SAMPLES = [10, 10, 10, 10, 40]  # eighths and a half: means over all, or without the last, are exact on the grid
FEDAVG = "protect.method=fedavg"
STATIC = ("protect.method=paraaegis-static", "protect.ratio=0.25")
CKKS = ("protect.method=ckks-fedavg",)
METHODS = {"fedavg": (FEDAVG,), "ckks": CKKS, "static": STATIC}
each_method = pytest.mark.parametrize("settings", METHODS.values(), ids=METHODS)


def hand(*settings, quorum=4, rounds=3, samples=SAMPLES):
    return Hand(UPDATES, f"federation.quorum={quorum}", *settings, rounds=rounds, samples=samples)


def of_all(number):
    """The mean update of a round in which everyone is counted."""
    return mean(UPDATES[:, number - 1], SAMPLES)


def lost(client, kind, number=1):
    """A transport on which one client's reply to one message is lost."""

    def meddle(name, request, answer):
        frames = answer()
        hit = name == client and isinstance(request, kind) and request.round_id.number == number
        return None if hit else frames

    return meddle
