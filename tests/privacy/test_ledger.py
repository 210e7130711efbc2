"""Every release is written before it leaves, and what the budget cannot pay does not leave."""

import json
import math

import msgspec
import numpy as np
import pytest

from hand import Hand
from paraaegis.errors import ConfigError, PrivacyError, RunError, UpdateError
from paraaegis.methods import METHODS, find_method
from paraaegis.privacy.budget import budget, inside_noise, noise
from paraaegis.privacy.calibrate import epsilon_of, mu_of
from paraaegis.privacy.gaussian import Gaussian
from paraaegis.privacy.guarantee import CLIENTS, HOLDERS, SERVER, guarantees, mu_against
from paraaegis.privacy.ledger import VOTES, Budget, Exposure, Ledger, Release, read_ledger, releases_of
from paraaegis.protocol.messages import Ballot, ReportOnly, Upload
from paraaegis.runs.check import resolve
from paraaegis.runs.guarantees import run_guarantees, spending
from paraaegis.runs.run import federate
from toy import configure, learners_of, play, wired_of

TIGHT = ("privacy.calibration=tight", "privacy.epsilon=1.0", "privacy.clip=1.0")
UPDATES = np.random.default_rng(0).normal(size=(3, 40)).astype(np.float32)
NOISED = Exposure("update", "noised", "noised", Gaussian(1.0, (2.0, 2.0, 2.0)))


def release(number=1, client="a", sigma=2.0, simulated=False, attempt=0, what="update"):
    return Release(round=number, client=client, what=what, server="noised", clients="noised", clip=1.0, sigma=sigma,
                   simulated=simulated, attempt=attempt)  # fmt: skip


def room_for(count, sigma=2.0):
    """A budget that pays for exactly so many releases."""
    limit = count / sigma**2
    return Budget(1.0, limit, epsilon_of(math.sqrt(limit), 1e-5), 1e-5, "unit: client")


# The list


def test_releases_are_in_the_file_before_record_returns(tmp_path):
    ledger = Ledger(path=tmp_path / "ledger.jsonl")
    for number in range(1, 4):
        ledger.record([release(number)])
        assert read_ledger(tmp_path / "ledger.jsonl") == [release(n) for n in range(1, number + 1)]


def test_a_ledger_goes_on_where_it_stopped(tmp_path):
    for number in range(1, 4):
        Ledger(room_for(3), tmp_path / "ledger.jsonl").record([release(number)])
    with pytest.raises(PrivacyError, match="budget of a is spent"):
        Ledger(room_for(3), tmp_path / "ledger.jsonl").record([release(4)])
    assert len(read_ledger(tmp_path / "ledger.jsonl")) == 3


def test_a_line_that_a_kill_cut_off_never_left_and_the_next_is_whole(tmp_path):
    path = tmp_path / "ledger.jsonl"
    Ledger(path=path).record([release(1), release(2)])
    path.write_bytes(path.read_bytes()[:-5])
    Ledger(path=path).record([release(3)])
    assert [one.round for one in read_ledger(path)] == [1, 3]


@pytest.mark.parametrize("line", [b"{}\n", b"nonsense\n", b'{"round": "one"}\n', b"\xff\n"])
def test_a_damaged_ledger_is_refused(tmp_path, line):
    path = tmp_path / "ledger.jsonl"
    Ledger(path=path).record([release(1)])
    path.write_bytes(line + path.read_bytes())
    with pytest.raises(RunError, match="the privacy spent is unknown"):
        Ledger(path=path)


def test_a_ledger_that_is_cut_or_removed_while_it_is_in_use_is_not_filled_up(tmp_path):
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(None, path)
    ledger.record([release(1)])
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(RunError, match=r"shrank from .* bytes while it was in use, .* restore the file"):
        ledger.record([release(2)])
    assert path.stat().st_size == 40
    path.unlink()
    with pytest.raises(RunError, match=r"is gone, .* restore the file"):
        ledger.record([release(2)])
    assert not path.exists()


def test_seeded_noise_replayed_is_one_release_and_fresh_noise_a_second():
    seeded, fresh = Ledger(room_for(1)), Ledger(room_for(1))
    for _ in range(3):
        seeded.record([release(simulated=True)])
    fresh.record([release()])
    assert len(seeded.releases) == 1
    with pytest.raises(PrivacyError):
        fresh.record([release()])
    with pytest.raises(PrivacyError):  # another attempt has other noise, seeded or not
        seeded.record([release(simulated=True, attempt=1)])


def test_another_run_with_the_same_ledger_is_another_release():
    ledger = Ledger()
    for run in ("one", "two", "two"):
        ledger.record(releases_of([VOTES], "a", 1, run=run))
    assert [one.run for one in ledger.releases] == ["one", "two"]


def test_each_client_spends_its_own_budget():
    ledger = Ledger(room_for(2))
    for number in (1, 2):
        for client in "ab":
            ledger.record([release(number, client)])
    for client in "ab":
        assert ledger.refusal([release(3, client)])
    assert not ledger.refusal([release(3, "c")])
    assert ledger.share == pytest.approx(1.0)


def test_a_refusal_says_what_was_spent_and_what_would_fit():
    limit = 2.5 / 4
    ledger = Ledger(Budget(1.0, limit, epsilon_of(math.sqrt(limit), 1e-5), 1e-5, "unit: client"))
    ledger.record([release(1), ])  # fmt: skip
    ledger.record([release(2)])
    text = ledger.refusal([release(3)])
    assert f"ε = {epsilon_of(math.sqrt(0.5), 1e-5):.4g} at δ = 1e-05 (unit: client) of" in text
    assert "unit: client" in text
    assert "against" in text
    fits = float(text.split("σ = ")[1].split(")")[0])
    assert not ledger.refusal([release(3, sigma=fits * 1.001)])
    assert ledger.refusal([release(3, sigma=fits * 0.99)])


# Guarantees


def test_the_worst_client_and_all_its_parts_count():
    several = [release(1, "a"), release(1, "b"), release(2, "b", sigma=1.0)]
    assert mu_against(SERVER, several, "client") == pytest.approx(math.sqrt(1 / 4 + 1))
    assert mu_against(SERVER, several, "client-replace") == pytest.approx(2 * math.sqrt(1 / 4 + 1))


@pytest.mark.parametrize("name", METHODS)
def test_every_guarantee_names_its_adversary_and_an_epsilon_its_unit(name):
    found = run_guarantees(configure(*TIGHT, f"protect.method={name}", "federation.min_samples=10")).guarantees
    assert [one.adversary for one in found] == [SERVER, CLIENTS, HOLDERS]
    for one in found:
        assert one.why
        assert (one.epsilon is None) == (one.unit == "") == (one.delta is None)
        assert (one.epsilon is None) == ("dp" not in one.kind)


def test_a_method_that_votes_never_gets_a_total_epsilon():
    for settings in ([], ["privacy.inside_clip=1.0"]):
        config = configure(*TIGHT, "protect.method=paraaegis-static", "federation.min_samples=10", *settings)
        assert {one.kind for one in run_guarantees(config).guarantees} <= {"simulated dp given the partition", "none"}


def test_seeded_noise_is_marked_as_a_simulation():
    config = configure(*TIGHT, "federation.min_samples=10")
    assert run_guarantees(config).simulation
    assert not run_guarantees(
        msgspec.structs.replace(config, privacy=msgspec.structs.replace(config.privacy, noise="secret"))
    ).simulation


def test_metrics_of_a_silos_own_data_and_sample_counts_are_said():
    told = [release(1), release(1, what="samples"), release(1, what="metrics")]
    why = guarantees(told, 1e-5, "client")[0].why
    assert "hold-out" in why
    assert "number of samples" in why


# What leaves in a run


def whats(ledger):
    return {(one.round, one.client, one.what) for one in ledger.releases}


@pytest.mark.parametrize(
    ("method", "values"),
    [("fedavg", {"update"}), ("dp-fedavg", {"update"}), ("paraaegis-static", {"votes", "inside", "outside"}),
     ("paraaegis-feedback", {"votes", "inside"}), ("serial", {"update"})],
)  # fmt: skip
def test_every_value_and_vote_of_every_round_is_in_the_ledger(method, values):
    played = play(UPDATES, *TIGHT, f"protect.method={method}", rounds=2)
    ledgers = {id(silo.ledger): silo.ledger for silo in played.wired.clients.values()}
    found = set().union(*map(whats, ledgers.values()))
    wanted = {(number, f"client-{i}", what) for number in (1, 2) for i in range(3) for what in values}
    assert found == wanted | {(0, f"client-{i}", "samples") for i in range(3)}


def test_uniform_weights_tell_no_sample_count():
    played = play(UPDATES, "protect.method=fedavg", "federation.weights=uniform", samples=[10, 20, 30])
    assert not any(one.what == "samples" for silo in played.wired.clients.values() for one in silo.ledger.releases)
    np.testing.assert_allclose(played.model, UPDATES.mean(axis=0), atol=1e-6)


def test_an_upload_of_a_round_that_was_aborted_still_counts():
    playing = Hand(UPDATES[:2], *TIGHT, "protect.method=dp-fedavg", rounds=1)
    ledger = playing.silos["client-0"].ledger
    assert isinstance(playing.send("client-0", playing.begin(1)), Upload)
    again = playing.send("client-0", playing.begin(1, attempt=1))  # as after a round that fell below its quorum
    assert isinstance(again, ReportOnly)
    assert "budget of client-0 is spent" in again.declined
    assert [one.attempt for one in ledger.releases if one.what == "update"] == [0]


def test_a_client_that_cannot_pay_neither_trains_nor_votes():
    playing = Hand(UPDATES[:2], *TIGHT, "protect.method=paraaegis-static", "privacy.sigma=0.1", rounds=2)
    reply = playing.send("client-0", playing.begin(1))
    assert isinstance(reply, ReportOnly)
    assert not isinstance(reply, Ballot)
    assert playing.learners["client-0"].trained == 0
    assert not any(one.round for one in playing.silos["client-0"].ledger.releases)


# The budget's stop


def stopping(rounds_paid):
    """Settings whose noise pays for so many of ten rounds."""
    sigma = math.sqrt(rounds_paid + 0.5) / mu_of(1.0, 1e-5)
    return configure(*TIGHT, "protect.method=dp-fedavg", f"privacy.sigma={sigma}", "federation.rounds=10",
                     "federation.clients=3", "privacy.noise=secret")  # fmt: skip


def test_a_spent_budget_stops_a_run_cleanly_and_starting_it_again_does_not_get_around_it(tmp_path):
    config, out = stopping(4), tmp_path / "run"
    result = federate(config, learners_of(UPDATES), out)
    assert result.rounds == 4
    assert "round 5: the privacy budget of client-0 is spent" in result.stopped
    assert result.metrics  # of the model after round 4
    before = (out / "ledger.jsonl").read_bytes()
    assert federate(config, learners_of(UPDATES), out).stopped == result.stopped
    (out / "result.json").unlink()
    with pytest.raises(RunError, match="could only be repeated, for twice the budget"):
        federate(config, learners_of(UPDATES), out)
    assert (out / "ledger.jsonl").read_bytes().count(b'"update"') == before.count(b'"update"') == 12
    with pytest.raises(RunError, match="really spent"):
        federate(config, learners_of(UPDATES), out, fresh=True)


def interrupt(config, out, number):
    """Carry out a run until the line of a round is shown."""

    class TiredError(Exception):
        pass

    def stop(line):
        if line.round == number:
            raise TiredError

    with pytest.raises(TiredError):
        federate(config, learners_of(UPDATES), out, on_record=stop)


def test_a_run_that_is_taken_up_with_fresh_noise_pays_for_what_it_repeats(tmp_path):
    config, out = stopping(6), tmp_path / "run"
    config = msgspec.structs.replace(config, engine=msgspec.structs.replace(config.engine, checkpoint=2))
    interrupt(config, out, 3)
    result = federate(config, learners_of(UPDATES), out)
    sent = [one for one in read_ledger(out / "ledger.jsonl") if one.what == "update" and one.client == "client-0"]
    assert len(sent) == 6
    assert result.rounds < 6
    assert len({(one.round, one.attempt) for one in sent}) == 6


def test_a_run_whose_ledger_is_gone_does_not_go_on(tmp_path):
    out = tmp_path / "run"
    interrupt(stopping(6), out, 1)
    (out / "ledger.jsonl").unlink()
    with pytest.raises(RunError, match="is gone"):
        federate(stopping(6), learners_of(UPDATES), out)


def test_a_run_whose_checkpoint_is_gone_does_not_spend_its_budget_twice(tmp_path):
    out = tmp_path / "run"
    interrupt(stopping(6), out, 3)
    before = (out / "rounds.jsonl").read_bytes()
    (out / "checkpoint.npz").rename(tmp_path / "elsewhere")
    with pytest.raises(RunError, match="twice the budget; restore the file"):
        federate(stopping(6), learners_of(UPDATES), out)
    assert (out / "rounds.jsonl").read_bytes() == before
    (tmp_path / "elsewhere").rename(out / "checkpoint.npz")
    assert federate(stopping(6), learners_of(UPDATES), out).rounds > 0


@pytest.mark.parametrize("spoil", ["cut", "emptied", "changed"])
def test_a_run_whose_ledger_was_changed_does_not_go_on(tmp_path, spoil):
    out = tmp_path / "run"
    interrupt(stopping(6), out, 3)
    lines = (out / "ledger.jsonl").read_bytes().splitlines(keepends=True)
    spoilt = {"cut": [*lines[:4], lines[4][:20]], "emptied": [], "changed": lines[1:] + lines[:1]}[spoil]
    (out / "ledger.jsonl").write_bytes(b"".join(spoilt))
    with pytest.raises(RunError, match="is gone or was changed"):
        federate(stopping(6), learners_of(UPDATES), out)
    (out / "ledger.jsonl").write_bytes(b"".join(lines))
    assert federate(stopping(6), learners_of(UPDATES), out).rounds > 0


@pytest.mark.parametrize("fresh", [True, False])
def test_a_secret_run_without_its_ledger_is_not_started_over(tmp_path, fresh):
    out = tmp_path / "run"
    federate(stopping(4), learners_of(UPDATES), out)
    (out / "ledger.jsonl").unlink()
    if not fresh:
        (out / "result.json").unlink()
    with pytest.raises(RunError, match="shows that something was sent"):
        federate(stopping(4), learners_of(UPDATES), out, fresh=fresh)


def test_processes_that_share_a_ledger_share_a_budget(tmp_path):
    first, second = (Ledger(room_for(2), tmp_path / "ledger.jsonl") for _ in range(2))
    first.record([release(1)])
    second.record([release(2)])
    for ledger in (first, second):
        with pytest.raises(PrivacyError):
            ledger.record([release(3)])
    assert [one.round for one in read_ledger(tmp_path / "ledger.jsonl")] == [1, 2]


@pytest.mark.parametrize("calibration", ["tight", "paper"])
def test_a_refusal_never_names_an_epsilon_without_adversary_and_unit(calibration):
    config = resolve(configure(*TIGHT[1:], f"privacy.calibration={calibration}", "privacy.sigma=0.01"), [10])
    text = Ledger(budget(config)).refusal([release(sigma=0.01)])
    assert "against everyone who reads its noised values" in text
    assert "unit: client" in text


def test_nothing_sent_is_no_epsilon_of_zero():
    for releases in ([], [release(what="votes")]):
        assert {one.kind for one in guarantees(releases, 1e-5, "client")} == {"nothing sent"}


def test_a_ledger_of_seeded_noise_claims_nothing_but_a_simulation():
    found = guarantees([release(simulated=True)], 1e-5, "client")
    assert {one.kind for one in found} == {"simulated dp"}


def test_what_a_run_has_spent_can_be_read_from_its_folder(tmp_path):
    federate(stopping(4), learners_of(UPDATES), tmp_path / "run")
    found = spending(tmp_path / "run")
    assert found.spent.releases == {"samples": 3, "update": 12, "metrics": 12}
    assert found.spent.share_of_budget == pytest.approx(4 / 4.5)
    assert found.guarantees[0].epsilon == pytest.approx(epsilon_of(mu_of(1.0, 1e-5) * math.sqrt(4 / 4.5), 1e-5))
    assert json.loads((tmp_path / "run" / "ledger.jsonl").read_text().splitlines()[-1])["client"]


def test_the_papers_noise_pays_for_its_rounds_in_the_papers_own_reading(tmp_path):
    config = configure("privacy.epsilon=1.0", "privacy.clip=1.0", "protect.method=dp-fedavg", "federation.clients=3")
    result = federate(config, learners_of(UPDATES), tmp_path / "run")
    assert (result.rounds, result.stopped) == (config.federation.rounds, "")
    assert spending(tmp_path / "run").spent.share_of_budget == pytest.approx(1.0)


# Options that close gaps


def test_both_noised_parts_share_the_budget():
    config = resolve(configure(*TIGHT, "privacy.inside_clip=0.5", "federation.rounds=3"), [10])
    half = find_method("paraaegis-static").client(config)
    releases = [one for number in (1, 2, 3) for one in releases_of(half.exposures, "a", number)]
    assert mu_against(CLIENTS, releases, "client") == pytest.approx(mu_of(1.0, 1e-5))
    assert mu_against(SERVER, releases, "client") == pytest.approx(mu_of(1.0, 1e-5) / math.sqrt(2))
    assert budget(config).limit == pytest.approx(mu_of(1.0, 1e-5) ** 2)
    assert inside_noise(config, 2).sigmas[0] == pytest.approx(noise(config, 2).sigmas[0] / 2)  # half the clip


@pytest.mark.parametrize("samples", [None, [10, 20, 40, 80, 160]], ids=["equal", "skewed"])
def test_the_shares_of_a_quorum_without_its_colluders_carry_the_noise_that_is_claimed(samples):
    """With all five clients in the sum: at least σ·√(5/(m − c)), scaled for the heaviest client."""
    updates = np.zeros((5, 20_000), dtype=np.float32)
    settings = (*TIGHT, "protect.method=ckks-fedavg", "privacy.inside_clip=1.0", "federation.quorum=4",
                "privacy.colluders=2", "federation.clients=5")  # fmt: skip
    played = play(updates, *settings, samples=samples)
    weights = np.array(samples or [1] * 5) / sum(samples or [1] * 5)
    config = resolve(configure(*settings, "federation.rounds=1"), [10])
    sigma = inside_noise(config, 1).sigmas[0] * weights.max() * math.sqrt(5 / 2)
    assert played.model.std() == pytest.approx(sigma, rel=0.03)


def test_shares_of_noise_that_rounding_would_take_away_are_refused():
    updates = np.zeros((5, 20_000), dtype=np.float32)
    settings = (*TIGHT, "protect.method=ckks-fedavg", "federation.clients=5", "federation.quorum=4")
    played = play(updates, *settings, "privacy.inside_clip=1e-5")
    config = resolve(configure(*settings, "privacy.inside_clip=1e-5", "federation.rounds=1"), [10])
    claimed = inside_noise(config, 1).sigmas[0] / 5 * math.sqrt(5 / 3)
    assert played.model.std() == pytest.approx(claimed, rel=0.03)
    with pytest.raises(UpdateError, match=r"would be rounded away in steps of 2\.38e-07"):
        play(updates, *settings, "privacy.inside_clip=1e-7")


@pytest.mark.parametrize("method", ["fedavg", "ckks-fedavg", "lwe-secagg", "paraaegis-feedback"])
def test_what_is_not_clipped_cannot_be_carried_over(method):
    with pytest.raises(ConfigError, match=f"protect.carry is for methods that clip .* not {method}"):
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
    with pytest.raises(ConfigError, match="inside_clip is for methods that encrypt"):
        play(UPDATES, *TIGHT, f"protect.method={method}", "privacy.inside_clip=1.0")


def test_colluders_must_leave_someone_to_make_the_noise():
    with pytest.raises(ConfigError, match="colluders must be below the quorum of 3, got 3"):
        play(UPDATES, *TIGHT, "protect.method=ckks-fedavg", "privacy.inside_clip=1.0", "privacy.colluders=3")


def test_a_capped_participation_is_kept_and_needs_less_noise():
    settings = (*TIGHT, "protect.method=dp-fedavg", "federation.clients=5", "federation.fraction=0.4",
                "federation.rounds=10", "privacy.participations=4")  # fmt: skip
    plan = wired_of(configure(*settings), learners_of(np.zeros((5, 8), dtype=np.float32))).parameters
    counts = [sum(client in plan.members(number) for number in range(1, 11)) for client in plan.clients]
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
