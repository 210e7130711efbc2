"""Options that close gaps: noise inside, shares of noise, carried clipping, fewer participations, floors."""

import math

import msgspec
import numpy as np
import pytest

from hand import Hand
from paraaegis.errors import ConfigError, UpdateError
from paraaegis.methods import find_method
from paraaegis.privacy.budget import budget, noise, shared_noise
from paraaegis.privacy.calibrate import mu_of
from paraaegis.privacy.guarantee import CLIENTS, SERVER, mu_against
from paraaegis.privacy.ledger import releases_of
from paraaegis.runs.check import resolve
from paraaegis.runs.guarantees import run_guarantees
from toy import configure, federation_of, learners_of, play

TIGHT = ("privacy.calibration=tight", "privacy.epsilon=1.0", "privacy.clip=1.0")
UPDATES = np.random.default_rng(0).normal(size=(3, 40)).astype(np.float32)


def test_both_noised_parts_share_the_budget():
    config = resolve(configure(*TIGHT, "privacy.inside_clip=0.5", "federation.rounds=3"), [10])
    half = find_method("paraaegis-static").client(config)
    releases = [one for number in (1, 2, 3) for one in releases_of(half.exposures, "a", number)]
    assert mu_against(CLIENTS, releases, "client") == pytest.approx(mu_of(1.0, 1e-5))
    assert mu_against(SERVER, releases, "client") == pytest.approx(mu_of(1.0, 1e-5) / math.sqrt(2))
    assert budget(config).limit == pytest.approx(mu_of(1.0, 1e-5) ** 2)
    assert shared_noise(config, 2).sigmas[0] == pytest.approx(noise(config, 2).sigmas[0] / 2)  # half the clip


@pytest.mark.parametrize("samples", [None, [10, 20, 40, 80, 160]], ids=["equal", "skewed"])
def test_the_shares_of_a_quorum_without_its_colluders_carry_the_noise_that_is_claimed(samples):
    """With all five clients in the sum: at least σ·√(5/(m − c)), scaled for the heaviest client."""
    updates = np.zeros((5, 20_000), dtype=np.float32)
    settings = (*TIGHT, "protect.method=ckks-fedavg", "privacy.inside_clip=1.0", "federation.quorum=4",
                "privacy.colluders=2", "federation.clients=5")  # fmt: skip
    played = play(updates, *settings, samples=samples)
    weights = np.array(samples or [1] * 5) / sum(samples or [1] * 5)
    config = resolve(configure(*settings, "federation.rounds=1"), [10])
    sigma = shared_noise(config, 1).sigmas[0] * weights.max() * math.sqrt(5 / 2)
    assert played.model.std() == pytest.approx(sigma, rel=0.03)


def test_shares_of_noise_that_rounding_would_take_away_are_refused():
    updates = np.zeros((5, 20_000), dtype=np.float32)
    settings = (*TIGHT, "protect.method=ckks-fedavg", "federation.clients=5", "federation.quorum=4")
    played = play(updates, *settings, "privacy.inside_clip=1e-5")
    config = resolve(configure(*settings, "privacy.inside_clip=1e-5", "federation.rounds=1"), [10])
    claimed = shared_noise(config, 1).sigmas[0] / 5 * math.sqrt(5 / 3)
    assert played.model.std() == pytest.approx(claimed, rel=0.03)
    with pytest.raises(UpdateError, match=r"would be rounded away in steps of 2\.38e-07"):
        play(updates, *settings, "privacy.inside_clip=1e-7")


@pytest.mark.parametrize("method", ["fedavg", "ckks-fedavg", "lwe-secagg", "paraaegis-feedback"])
def test_what_is_not_clipped_cannot_be_carried_over(method):
    with pytest.raises(ConfigError, match=f"protect.carry applies only to methods that clip .* {method} is not one"):
        play(UPDATES, *TIGHT, f"protect.method={method}", "protect.carry=true")


def test_serial_carries_over_what_clipping_cut():
    settings = ("protect.method=serial", "privacy.clip=4.0", "protect.carry=true")
    played = play(np.full((2, 4), 4.0, dtype=np.float32), *settings)
    np.testing.assert_allclose(played.model, 2.0, atol=1e-5)
    np.testing.assert_allclose(played.residual("client-0"), 2.0, atol=1e-5)


def test_what_clipping_cuts_inside_can_be_carried_over():
    updates = np.array([[[8.0, 0, 0, 0]] * 2] * 2, dtype=np.float32)
    settings = ("protect.method=paraaegis-feedback", "protect.ratio=0.25", "privacy.inside_clip=1.0",
                "privacy.clip=1.0", "protect.carry=true")  # fmt: skip
    played = play(updates, *settings, rounds=2)
    np.testing.assert_allclose(played.model, [2, 0, 0, 0], atol=1e-6)
    np.testing.assert_allclose(played.residual("client-0"), [7 + 8 - 1, 0, 0, 0], atol=1e-5)


@pytest.mark.parametrize("method", ["fedavg", "dp-fedavg", "serial", "lwe-secagg", "varying-dp"])
def test_noise_inside_is_refused_where_nothing_is_encrypted_without(method):
    with pytest.raises(ConfigError, match="inside_clip applies only to methods that encrypt"):
        play(UPDATES, *TIGHT, f"protect.method={method}", "privacy.inside_clip=1.0")


def test_colluders_must_leave_someone_to_make_the_noise():
    with pytest.raises(ConfigError, match="colluders must be below the quorum of 3, got 3"):
        play(UPDATES, *TIGHT, "protect.method=ckks-fedavg", "privacy.inside_clip=1.0", "privacy.colluders=3")


def test_a_capped_participation_is_kept_and_needs_less_noise():
    settings = (*TIGHT, "protect.method=dp-fedavg", "federation.clients=5", "federation.fraction=0.4",
                "federation.rounds=10", "privacy.participations=4")  # fmt: skip
    parameters = federation_of(configure(*settings), learners_of(np.zeros((5, 8), dtype=np.float32))).parameters
    counts = [sum(client in parameters.members(number) for number in range(1, 11)) for client in parameters.clients]
    assert counts == [4] * 5
    worst = noise(resolve(configure(*settings[:-1]), [10])).sigmas[0]
    assert noise(resolve(configure(*settings), [10])).sigmas[0] == pytest.approx(worst * math.sqrt(4 / 10))
    assert run_guarantees(configure(*settings, "federation.min_samples=10")).guarantees[0].epsilon == pytest.approx(
        1.0, abs=1e-6
    )
    with pytest.raises(ConfigError, match="participations must be at least 4"):
        configure(*settings[:-1], "privacy.participations=3")


def test_a_floor_is_the_least_quorum_and_refused_below():
    config = configure("privacy.floor=9", "federation.clients=10")
    assert resolve(config, [10] * 10).federation.quorum == 9
    with pytest.raises(ConfigError, match="floor must be at most the quorum, 2, got 3"):
        configure("privacy.floor=3", "federation.quorum=2")


def test_a_client_refuses_a_sum_over_fewer_than_the_quorum_or_over_strangers():
    for counted in (("client-0",), ("client-0", "client-0"), ("client-0", "stranger")):
        playing = Hand(UPDATES[:2], "protect.method=fedavg", "federation.quorum=2", rounds=2)
        aggregate = playing.round(1)
        with pytest.raises(Exception, match="should be a sum over 2 or more"):
            playing.send("client-0", playing.begin(2, msgspec.structs.replace(aggregate, clients=counted)))
