"""The cost model adds up what its parts say."""

import math

import pytest

from machine import LINE, MACHINE
from paraaegis.errors import ConfigError
from paraaegis.planning.cost import FLOWER_BYTE, FLOWER_EXCHANGE, Setting, estimate

BALLOT = 10_000 * (3 + 1 / (1 - 0.9**8)) / 8  # remainders of three bits, and a quotient of q with probability ~ 0.9^8q


def of(method, **changed):
    fields = {"method": method, "length": 100_000, "clients": 5, "rounds": 1, "ratio": 0.1} | changed
    return estimate(MACHINE, Setting(**fields))


@pytest.mark.parametrize(
    ("method", "up", "down"),
    [
        ("fedavg", 500 + 400_000, 500 + 400_000),
        ("varying-dp", 500 + 400_000, 500 + 400_000),
        ("lwe-secagg", 500 + 400_000 + 25_000, 500 + 400_000 + 40_000),
        ("ckks-fedavg", 500 + 25 * 30_000, 500 + 25 * 60_000),
        ("paraaegis-static", 500 + BALLOT + 360_000 + 3 * 30_000, 500 + BALLOT + 360_000 + 3 * 60_000),
        ("paraaegis-feedback", 500 + BALLOT + 3 * 30_000, 500 + BALLOT + 3 * 60_000),
    ],
)
def test_bytes_follow_from_what_travels_how(method, up, down):
    found = of(method)
    assert (found.bytes_up, found.bytes_down) == pytest.approx((up, down))


def test_a_vote_takes_a_client_the_memory_of_its_orders_and_the_server_none():
    plain, voting = of("dp-fedavg", ratio=0.0), of("paraaegis-static", ratio=0.0)
    votes = voting.bytes_up + voting.bytes_down - plain.bytes_up - plain.bytes_down
    assert voting.memory_client - plain.memory_client == pytest.approx(8 * 4 * 100_000 + votes)
    assert voting.memory_server - plain.memory_server == pytest.approx(votes)


def test_many_votes_cost_as_much_as_the_votes_left_out():
    dense, all_of_them = (of("paraaegis-feedback", ratio=ratio).bytes_up for ratio in (0.9, 1.0))
    assert dense == pytest.approx(500 + BALLOT + 22 * 30_000)
    assert all_of_them == 500 + 25 * 30_000


def test_rounds_add_up_and_a_decaying_ratio_is_followed():
    assert of("fedavg", rounds=7).bytes_up == 7 * of("fedavg").bytes_up
    falling = of("paraaegis-dynamic", rounds=3, decay=0.5)
    assert falling.bytes_up == sum(of("paraaegis-static", ratio=0.1 * 0.5**t).bytes_up for t in range(3))


def test_clients_that_share_a_machine_wait_for_each_other():
    found = of("ckks-fedavg", train=2.0, rounds=2)
    once = LINE[0] + LINE[1] * 100_000 + LINE[2] * 25
    assert found.phases == {"train": 10.0, "protect": pytest.approx(10 * once)}  # two at a time, on two cores
    assert found.seconds == pytest.approx(10 + 10 * once)


def test_clients_of_their_own_work_at_once_and_wait_for_their_links():
    found = of("paraaegis-static", train=2.0, bandwidth=100.0)
    once = LINE[0] + LINE[1] * 100_000 + LINE[2] * 3
    traffic = found.bytes_up + found.bytes_down
    assert found.phases == pytest.approx(
        {
            "train": 2.0,
            "vote": once,
            "protect": once,
            "reveal": once,
            "combine": 5 * once,
            "transfer": 8 * traffic / 1e8,
            "Flower": 2 * FLOWER_EXCHANGE + FLOWER_BYTE * traffic,
        }
    )
    assert math.isclose(sum(found.phases.values()), found.seconds)


def test_more_values_take_more_memory():
    for who in ("memory_client", "memory_server"):
        assert getattr(of("ckks-fedavg", length=10**7), who) > getattr(of("ckks-fedavg"), who) > 1e8


def test_a_method_that_was_not_measured_is_named():
    with pytest.raises(ConfigError, match=r"the costs of 'other' were not measured; known: fedavg"):
        of("other")
