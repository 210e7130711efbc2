"""A plan takes the best that fits, names its neighbours, and says what nothing can fulfil."""

import math
from itertools import pairwise

import msgspec
import pytest

from machine import MACHINE
from paraaegis.config import make_config
from paraaegis.errors import ConfigError, RunError, UpdateError
from paraaegis.planning.pilot import Pilot, run_pilot
from paraaegis.planning.planner import (
    RATIOS,
    RESERVE,
    Request,
    check,
    configured,
    mean_ratio,
    recommend,
    train_seconds_of,
)
from paraaegis.privacy.budget import noise, shared_noise
from paraaegis.protocol.records import RoundRecord
from paraaegis.protocol.schedule import Schedule
from paraaegis.runs.check import check_early

LENGTH = 1_000_000
PILOT = Pilot(
    method="paraaegis-feedback",
    rounds=3,
    plain=90.0,
    by_ratio={"0.01": 70.0, "0.05": 85.0, "0.2": 89.0},
    train=0.5,
    wall=8.0,
)


def asked(method="paraaegis-feedback", *settings, pilot=None, **wishes):
    base = ["federation.clients=10", "federation.rounds=20", "privacy.calibration=tight", f"protect.method={method}"]
    return recommend(make_config({}, [*base, *settings]), Request(length=LENGTH, **wishes), MACHINE, pilot)


@pytest.mark.parametrize(("limit", "of"), [("megabytes", "megabytes"), ("seconds", "estimate.seconds")])
def test_the_largest_ratio_within_a_limit_is_chosen(limit, of):
    def took(choice):
        for name in of.split("."):
            choice = getattr(choice, name)
        return choice

    wide = {choice.ratio: took(choice) for choice in _all()}
    reserve = RESERVE if limit == "seconds" else 1
    bound = wide[0.05] * reserve * 1.01
    answer = asked(**{limit: bound})
    assert answer.fits
    assert answer.choice.ratio == 0.05
    assert reserve * took(answer.choice) <= bound < reserve * took(answer.better)
    assert (answer.cheaper.ratio, answer.better.ratio) == (0.03, 0.07)
    assert answer.choice.misses == []


def _all():
    """Every choice, met by asking for ever more."""
    answer, found = asked(megabytes=1e9), []
    choice = answer.choice
    while choice is not None:
        found.append(choice)
        choice = asked(megabytes=choice.megabytes * 0.999).choice if len(found) < len(RATIOS) else None
    return found


def test_what_nothing_can_fulfil_gets_the_nearest_and_the_difference():
    answer = asked(seconds=0.001)
    assert not answer.fits
    assert answer.choice.ratio == RATIOS[0]
    assert answer.cheaper is None
    assert "seconds including a reserve of a fifth, limit 0.001" in answer.choice.misses[0]


def test_without_limits_the_usual_ratio_is_chosen():
    assert asked().choice.ratio == 0.05
    assert asked("paraaegis-static").choice.ratio == 0.1


def test_a_decaying_ratio_comes_with_its_decay():
    answer = asked("paraaegis-dynamic", megabytes=200)
    assert answer.choice.decay in (0.99, 0.95, 0.9)
    written = configured(make_config({}, ["protect.method=paraaegis-dynamic"]), answer.choice)
    assert (written.protect.ratio, written.protect.decay) == (answer.choice.ratio, answer.choice.decay)


def test_with_a_pilot_the_cheapest_ratio_within_the_points_is_chosen():
    answer = asked(points=5.5, pilot=PILOT)
    assert answer.choice.ratio == 0.05
    assert answer.choice.points_lost == pytest.approx(5.0)
    assert answer.cheaper.points_lost > 5.5


def test_a_pilots_loss_is_its_own_at_its_ratios_and_vanishes_when_all_is_encrypted():
    assert [PILOT.points_lost(ratio) for ratio in (0.01, 0.05, 0.2)] == pytest.approx([20, 5, 1])
    assert 5 < PILOT.points_lost(0.02) < 20
    assert PILOT.points_lost(1.0) == 0
    assert PILOT.points_lost(0.001) == 90


def test_the_plan_says_what_it_guarantees_and_its_noise():
    answer = asked("paraaegis-static", "privacy.epsilon=2.0")
    assert {one.adversary for one in answer.guarantees} >= {"server and network"}
    assert answer.sigma > 1


def test_training_is_a_clients_own_or_its_share_of_this_machine():
    config = make_config({}, ["federation.clients=10"])
    assert train_seconds_of(PILOT, config, MACHINE, LENGTH, here=False) == 0.5
    assert train_seconds_of(PILOT, config, MACHINE, LENGTH, here=True) == pytest.approx((8 - 10 * (0.001 + 0.01)) / 5)


def test_the_mean_of_a_decaying_ratio():
    assert mean_ratio(0.1, 1.0, 9) == 0.1
    assert mean_ratio(0.1, 0.5, 2) == pytest.approx(0.075)


@pytest.mark.parametrize("length", [2_000, 10_000, 151_690, LENGTH])
@pytest.mark.parametrize("method", ["paraaegis-static", "paraaegis-dynamic", "paraaegis-feedback"])
def test_better_is_a_higher_mean_ratio_that_costs_more_and_cheaper_a_lower_one(method, length):
    config = make_config({}, ["privacy.calibration=tight", f"protect.method={method}", "federation.rounds=5"])
    for megabytes in (0.01, 0.1, 1, 10, 100):
        answer = recommend(config, Request(length=length, megabytes=megabytes), MACHINE)
        near = [one for one in (answer.cheaper, answer.choice, answer.better) if one]
        assert [one.mean_ratio for one in near] == sorted(one.mean_ratio for one in near)
        for lower, higher in pairwise(near):
            assert higher.megabytes > lower.megabytes or higher.estimate.seconds > lower.estimate.seconds


def test_something_is_elected_in_every_round():
    config = make_config({}, ["protect.method=paraaegis-dynamic", "federation.rounds=40", "federation.min_samples=9"])
    answer = recommend(config, Request(length=400, megabytes=0.001), MACHINE)
    assert Schedule(answer.choice.ratio, answer.choice.decay).elected_at(40, 400) >= 1
    assert answer.cheaper is None


def test_a_pilot_that_diverges_has_learnt_nothing():
    config = make_config({}, ["protect.method=paraaegis-feedback", "federation.clients=2"])

    def run_one(chosen, out):
        if chosen.protect.ratio == 0.01:
            raise UpdateError("it diverged")
        out.mkdir()
        accuracy = 0.9 if chosen.protect.method == "fedavg" else 0.8
        line = RoundRecord(
            round=1, ratio=0, elected=0, metrics={"accuracy": accuracy}, seconds={"train": 1.0, "wall": 2.0}
        )
        (out / "rounds.jsonl").write_bytes(msgspec.json.encode(line) + b"\n")

    pilot = run_pilot(config, 3, run_one=run_one)
    assert pilot.by_ratio == {"0.01": 0.0, "0.05": pytest.approx(80), "0.2": pytest.approx(80)}
    assert pilot.points_lost(0.01) == pytest.approx(90)


def test_a_pilot_can_compare_another_metric():
    def run_one(chosen, out):
        if chosen.protect.ratio == 0.01:
            raise UpdateError("it diverged")
        out.mkdir()
        metrics = {"auc": 0.9 - chosen.protect.ratio, "val_loss": 0.5 + chosen.protect.ratio}
        line = RoundRecord(round=1, ratio=0, elected=0, metrics=metrics, seconds={"train": 1.0, "wall": 2.0})
        (out / "rounds.jsonl").write_bytes(msgspec.json.encode(line) + b"\n")

    config = make_config({}, ["protect.method=paraaegis-feedback", "federation.clients=2"])
    pilot = run_pilot(config, 3, run_one=run_one)
    assert (pilot.metric, pilot.plain) == ("auc", 0.9)
    assert pilot.by_ratio == {"0.01": 0.0, "0.05": pytest.approx(0.85), "0.2": pytest.approx(0.7)}
    pilot = run_pilot(config, 3, run_one=run_one, metric="val_loss")
    assert pilot.points_lost(0.2) == pytest.approx(0.2)
    assert pilot.points_lost(0.01) == pilot.points_lost(0.02) == pilot.points_lost(0.001) == math.inf
    assert pilot.points_lost(1.0) == 0
    with pytest.raises(ConfigError, match=r"reported \(auc, val_loss\), got 'accuracy'"):
        run_pilot(config, 3, run_one=run_one, metric="accuracy")


def test_a_metric_that_is_undefined_at_the_end_of_a_pilot_has_learnt_nothing():
    def run_one(chosen, out):
        out.mkdir()
        auc = math.nan if chosen.protect.method != "fedavg" else 0.9
        line = RoundRecord(round=1, ratio=0, elected=0, metrics={"auc": auc}, seconds={"train": 1.0, "wall": 2.0})
        (out / "rounds.jsonl").write_bytes(msgspec.json.encode(line) + b"\n")

    pilot = run_pilot(make_config({}, ["protect.method=paraaegis-feedback"]), 3, run_one=run_one)
    assert set(pilot.by_ratio.values()) == {0.0}


def test_where_nothing_was_learnt_no_limit_is_met_however_high():
    lost = Pilot(method="paraaegis-feedback", metric="loss", rounds=4, plain=0.5,
                 by_ratio=dict.fromkeys(("0.01", "0.05", "0.2"), math.inf), train=0.5, wall=8.0)  # fmt: skip
    answer = asked(pilot=lost, points=1e9)
    assert answer.choice.ratio == 1.0
    assert answer.choice.points_lost == 0


def test_a_pilots_noise_is_that_of_the_whole_run_inside_and_outside():
    settings = ["protect.method=paraaegis-static", "privacy.inside_clip=5.0", "privacy.clip=2.0",
                "protect.carry=true", "engine.name=flower",
                "federation.rounds=40", "privacy.epsilon=1.0", "privacy.calibration=tight",
                "federation.clients=3"]  # fmt: skip
    config, flown = make_config({}, settings), []

    def run_one(chosen, out):
        flown.append(chosen)
        out.mkdir()
        line = RoundRecord(round=1, ratio=0, elected=0, metrics={"accuracy": 0.5}, seconds={"train": 1.0, "wall": 2.0})
        (out / "rounds.jsonl").write_bytes(msgspec.json.encode(line) + b"\n")

    run_pilot(config, 3, run_one=run_one)
    for find in (noise, shared_noise):
        assert find(flown[-1], 2).sigmas[0] == pytest.approx(find(config, 2).sigmas[0])
    for chosen in flown:
        check_early(chosen)  # also plain averaging, which knows no clip inside and carries nothing over
        assert chosen.engine.name == "local"


def test_a_pilot_does_not_stop_early():
    flown = []

    def run_one(chosen, _):
        flown.append(chosen)
        raise UpdateError("enough")

    with pytest.raises(RunError, match="plain averaging diverged in the pilot: enough"):
        run_pilot(make_config({}, ["train.stop_after=1"]), 3, run_one=run_one)
    assert flown[0].train.stop_after == 0


def test_a_pilot_shorter_than_a_clients_participations_is_a_configuration():
    settings = ["privacy.calibration=tight", "federation.rounds=40", "federation.fraction=0.5",
                "privacy.participations=25"]  # fmt: skip
    flown = []

    def run_one(chosen, _):
        flown.append(chosen)
        raise UpdateError("enough")

    with pytest.raises(RunError, match="plain averaging diverged in the pilot: enough"):
        run_pilot(make_config({}, settings), 3, run_one=run_one)
    assert flown[0].privacy.participations == 3


def test_a_pilot_without_accuracies_is_refused():
    def run_one(_, out):
        out.mkdir()
        line = RoundRecord(round=1, ratio=0, elected=0, seconds={"train": 1.0, "wall": 2.0})
        (out / "rounds.jsonl").write_bytes(msgspec.json.encode(line) + b"\n")

    with pytest.raises(RunError, match="this learner reports none"):
        run_pilot(make_config({}, ["protect.method=paraaegis-feedback"]), 3, run_one=run_one)


def test_what_the_method_cannot_carry_out_is_refused_before_anything_is_measured():
    with pytest.raises(ConfigError, match=r"protect.decay must be 1.0"):
        check(make_config({}, ["protect.method=paraaegis-static", "protect.decay=0.9"]))
    with pytest.raises(ConfigError, match=r"protect.carry applies only to methods that clip"):
        check(make_config({}, ["protect.method=paraaegis-feedback", "protect.carry=true"]))


def test_a_method_without_a_ratio_is_refused():
    with pytest.raises(ConfigError, match="a ratio can be planned for paraaegis-static"):
        asked("fedavg")


def test_a_usual_ratio_gives_way_to_a_higher_one_that_costs_no_more():
    config = make_config(
        {}, ["federation.clients=10", "privacy.calibration=tight", "protect.method=paraaegis-feedback"]
    )
    # One ciphertext at any ratio, and no ballot at 100%.
    assert recommend(config, Request(length=2_000), MACHINE).choice.ratio == 1.0


def test_a_client_that_is_seldom_drawn_uploads_seldom():
    always, seldom = (
        asked("paraaegis-feedback", f"federation.clients={count}", f"federation.fraction={fraction}").choice
        for count, fraction in ((10, 1.0), (100, 0.1))
    )
    assert always.ratio == seldom.ratio
    up = always.estimate.bytes_up
    assert seldom.estimate.bytes_up == up
    assert 1e6 * (always.megabytes - seldom.megabytes) == pytest.approx(0.9 * up)


# What a limit is, and what a plan must reach


def test_a_limit_is_no_target():
    assert asked(megabytes=1e9, seconds=1e9, train=0.1).choice.ratio == 0.05
    assert asked(megabytes=1e9, pilot=PILOT, tolerance=100).choice.ratio == 0.01


def test_the_cheapest_within_the_tolerance_of_the_best_is_chosen():
    chosen = {tolerance: asked(pilot=PILOT, tolerance=tolerance).choice for tolerance in (0.0, 1.0, 5.0, 21.0)}
    ratios = [one.ratio for one in chosen.values()]
    assert ratios == sorted(ratios, reverse=True)
    assert (ratios[0], ratios[-1]) == (1.0, 0.01)
    assert chosen[5.0].points_lost <= 5.0


def test_a_limit_on_all_clients_together_is_theirs():
    one = asked(megabytes=50).choice
    assert asked(megabytes_total=500).choice == one
    assert one.megabytes_total == pytest.approx(10 * one.megabytes)


def test_plain_averaging_and_full_encryption_stand_beside_a_plan():
    plain, encrypted = asked(pilot=PILOT).references
    assert (plain.method, encrypted.method) == ("fedavg", "ckks-fedavg")
    assert plain.points_lost == encrypted.points_lost == 0
    assert plain.megabytes < encrypted.megabytes


def test_a_ratio_below_what_was_measured_is_marked():
    assert not asked(megabytes=1).choice.measured
    assert asked().choice.measured
    assert asked(megabytes=1, pilot=PILOT).choice.predicted is None


def test_noise_that_drowns_every_update_is_refused_with_what_would_learn():
    answer = asked("paraaegis-static", "privacy.epsilon=1", "model.name=resnet18")
    assert not answer.fits
    assert "times the clip: it will not learn" in answer.choice.misses[-1]
    records, encryption = answer.instead
    assert "privacy.unit=record" in records.settings
    assert "model.name=resnet18-gn" in records.settings
    for one in answer.instead:
        check_early(make_config({}, one.settings))
    assert encryption.settings[0] == "protect.method=paraaegis-feedback"
    paper = ("privacy.calibration=paper", "federation.min_samples=947", "federation.rounds=50")
    assert asked("paraaegis-static", *paper).fits  # 78.8% in our table


def test_a_pilot_that_reaches_less_than_half_of_plain_averaging_is_refused():
    flat = msgspec.structs.replace(PILOT, method="paraaegis-static", by_ratio=dict.fromkeys(PILOT.by_ratio, 17.5))
    answer = asked("paraaegis-static", "privacy.epsilon=1", pilot=flat)
    assert not answer.fits
    assert "accuracy 17.5 in the pilot, where plain averaging reached 90" in answer.choice.misses[-1]
    assert answer.instead


def test_a_prediction_reaches_from_the_pilots_result_to_an_error_that_falls_with_the_rounds():
    one = asked(pilot=PILOT, points=5.5).choice.predicted
    assert one.metric == "accuracy"
    assert one.low == pytest.approx(85 - 2)
    assert one.high == pytest.approx(100 - 10 * 3 / 20 + 2, abs=2)
    assert asked(pilot=msgspec.structs.replace(PILOT, metric="loss")).choice.predicted is None


def test_noise_in_the_encrypted_sum_is_not_escaped_by_encrypting_everything():
    drowned = msgspec.structs.replace(PILOT, by_ratio={"0.01": 10.0, "0.05": 10.0, "0.2": 10.0})
    answer = asked("paraaegis-feedback", "privacy.inside_clip=1.0", "privacy.epsilon=0.1", pilot=drowned)
    assert not answer.fits
    assert "it will not learn" in answer.choice.misses[-1]
    assert any("privacy.inside_clip=0" in one.settings for one in answer.instead)
    assert answer.references[1].predicted is None


def test_the_default_tolerance_of_a_loss_is_a_hundredth_of_it():
    pilot = msgspec.structs.replace(PILOT, metric="loss", plain=0.5, by_ratio={"0.01": 0.8, "0.05": 0.504, "0.2": 0.5})
    assert asked(pilot=pilot, metric="loss").choice.ratio == 0.05
    assert asked(pilot=pilot, metric="loss", tolerance=1.0).choice.ratio == 0.01


def test_alternatives_are_named_only_if_noise_is_why_nothing_fits():
    answer = asked("paraaegis-static", megabytes=0.1, pilot=PILOT)
    assert not answer.fits
    assert answer.instead == []
    assert "tried nothing below 1%" in answer.choice.misses[-1]


def test_what_was_learnt_counts_from_the_untrained_model():
    """Of two classes, half are right without any training."""
    flat = msgspec.structs.replace(PILOT, by_ratio=dict.fromkeys(PILOT.by_ratio, 50.0), start=50.0)
    assert not asked(pilot=flat, megabytes=100).fits
    loss = msgspec.structs.replace(PILOT, metric="loss", plain=1.3, start=2.3, by_ratio={"0.01": 2.3, "0.2": 1.4})
    answer = asked(pilot=loss)
    assert answer.fits
    assert answer.choice.ratio > 0.01


def test_no_gain_is_counted_that_was_not_measured():
    flat = msgspec.structs.replace(PILOT, method="paraaegis-static", by_ratio=dict.fromkeys(PILOT.by_ratio, 80.0))
    assert asked("paraaegis-static", pilot=flat).choice.ratio == 0.01


def test_noise_in_the_training_stays_at_any_ratio():
    pilot = msgspec.structs.replace(PILOT, by_ratio={"0.01": 60.0, "0.2": 80.0})
    answer = asked("paraaegis-feedback", "privacy.unit=record", pilot=pilot)
    assert answer.choice.points_lost == pytest.approx(10)
    assert answer.references[1].predicted is None
