"""Without a vote, the masks of uploads are computed while clients train. Nothing else about uploads changes."""

import numpy as np
import pytest

from hand import Hand, uploads
from masked import RLWE, masked
from paraaegis.crypto import rlwe
from paraaegis.protocol.client_context import ClientContext

NOISE = ("privacy.epsilon=8.0", "privacy.clip=1.0")
METHODS = {"ckks-fedavg": (), "ckks-fedavg inside": (*NOISE, "privacy.inside_clip=1.0"), "serial": NOISE}


@pytest.fixture
def made(monkeypatch):
    """The secrets of the masks that were computed ahead."""
    secrets, real = [], rlwe.precompute

    def precompute(mask, *given):
        secrets.append(mask.secret)
        return real(mask, *given)

    monkeypatch.setattr(rlwe, "precompute", precompute)
    return secrets


def prepares(monkeypatch, answer):
    monkeypatch.setattr(ClientContext, "prepares", property(lambda _: answer))


@pytest.mark.parametrize("name", METHODS)
def test_uploads_are_the_same_bytes_whether_their_masks_were_computed_ahead(name, monkeypatch, made):
    monkeypatch.setattr(rlwe.secrets, "token_bytes", bytes)  # every client has the same secret and errors
    found = []
    for answer in (True, False):
        prepares(monkeypatch, answer)
        playing = Hand(np.full((3, 1, 60), 0.01), f"protect.method={name.split()[0]}", RLWE, *METHODS[name], rounds=1)
        found.append([bytes(upload.payload.chunks[0].view) for upload in uploads(playing, 1)[0].values()])
        assert len(made) == 3
    assert found[0] == found[1]


@pytest.mark.parametrize("method", ["paraaegis-feedback", "paraaegis-static"])
def test_methods_that_vote_compute_no_masks_ahead(method, monkeypatch, made):
    prepares(monkeypatch, True)
    uploads(masked(method, rounds=1)[0], 1)
    assert made == []


def test_a_round_that_is_trained_again_has_fresh_masks(monkeypatch, made):
    prepares(monkeypatch, True)
    playing, _ = masked(rounds=1)
    found = [uploads(playing, 1, attempt=attempt)[0] for attempt in range(3)]
    assert len({secret.tobytes() for secret in made}) == 15
    for name in playing.silos:
        assert len({bytes(each[name].payload.chunks[0].view) for each in found}) == 3


def test_sums_of_masks_computed_ahead_open(monkeypatch, made):
    prepares(monkeypatch, True)
    playing, updates = masked(rounds=2)
    playing.send("client-0", playing.begin(2, playing.round(1)))
    np.testing.assert_allclose(playing.states["client-0"].weights, updates[:, 0].mean(axis=0), atol=1e-6)
    assert made
