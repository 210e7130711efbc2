"""What leaves in a run is in its ledger, and what the budget cannot pay does not leave."""

import json
import math

import msgspec
import numpy as np
import pytest

from hand import Hand
from paraaegis.errors import RunError
from paraaegis.privacy.calibrate import epsilon_of, mu_of
from paraaegis.privacy.ledger import read_ledger
from paraaegis.protocol.messages import Ballot, ReportOnly, Upload
from paraaegis.runs.guarantees import spending
from paraaegis.runs.run import federate
from toy import configure, learners_of, play

TIGHT = ("privacy.calibration=tight", "privacy.epsilon=1.0", "privacy.clip=1.0")
UPDATES = np.random.default_rng(0).normal(size=(3, 40)).astype(np.float32)


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
    ledgers = {id(silo.ledger): silo.ledger for silo in played.federation.clients.values()}
    found = set().union(*map(whats, ledgers.values()))
    wanted = {(number, f"client-{i}", what) for number in (1, 2) for i in range(3) for what in values}
    assert found == wanted | {(0, f"client-{i}", "samples") for i in range(3)}


def test_uniform_weights_tell_no_sample_count():
    played = play(UPDATES, "protect.method=fedavg", "federation.weights=uniform", samples=[10, 20, 30])
    assert not any(one.what == "samples" for silo in played.federation.clients.values() for one in silo.ledger.releases)
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
    with pytest.raises(RunError, match="would spend their budget twice"):
        federate(config, learners_of(UPDATES), out)
    assert (out / "ledger.jsonl").read_bytes().count(b'"update"') == before.count(b'"update"') == 12
    with pytest.raises(RunError, match="already spent with secret noise"):
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
    with pytest.raises(RunError, match="is missing"):
        federate(stopping(6), learners_of(UPDATES), out)


def test_a_run_whose_checkpoint_is_gone_does_not_spend_its_budget_twice(tmp_path):
    out = tmp_path / "run"
    interrupt(stopping(6), out, 3)
    before = (out / "rounds.jsonl").read_bytes()
    (out / "checkpoint.npz").rename(tmp_path / "elsewhere")
    with pytest.raises(RunError, match="budget twice; restore the file"):
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
    with pytest.raises(RunError, match="is missing or was changed"):
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
