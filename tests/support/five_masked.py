"""Five clients of each way to use RLWE, a transport that loses replies, and what the clients should end with."""

import numpy as np
import pytest

from five_clients import UPDATES
from masked import RLWE

FEEDBACK = (RLWE, "protect.method=paraaegis-feedback", "protect.ratio=0.25")
WHOLE = (RLWE, "protect.method=ckks-fedavg")
STATIC = (RLWE, "protect.method=paraaegis-static", "protect.ratio=0.25")
each_method = pytest.mark.parametrize("settings", [WHOLE, STATIC, FEEDBACK], ids=["whole", "static", "feedback"])


def away(*clients, kind, number=1, heard=False):
    """A transport that loses some clients' replies to one message or, unless they heard it, the message as well."""

    def meddle(name, request, answer):
        hit = name in clients and isinstance(request, kind) and request.round_id.number == number
        if not hit:
            return answer()
        if heard:
            answer()
        return None

    return meddle


def conserved(playing):
    """What every client trained, less what it still withholds, summed over clients by their weights."""
    number = playing.states["client-0"].applied
    weights = np.array(list(playing.weights.values())) / sum(playing.weights.values())
    withheld = [state.residual for state in playing.states.values()]
    return sum(w * (u[:number].sum(axis=0) - r) for w, u, r in zip(weights, UPDATES, withheld, strict=True))
