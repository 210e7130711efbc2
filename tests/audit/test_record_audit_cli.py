"""What `paraaegis audit` prints about record-level DP."""

import json

import pytest

from paraaegis.audit import games
from paraaegis.cli import main
from paraaegis.learn.private import PrivateGradient

RECORDS = ("--set", "privacy.unit=record", "--set", "privacy.calibration=tight")


def command(monkeypatch, *options):
    """The exit status of an audit."""
    monkeypatch.setattr("sys.argv", ["paraaegis", "audit", "--trials", "500", *options])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code or 0


def silent(monkeypatch):
    real = PrivateGradient.draw_noise
    monkeypatch.setattr(PrivateGradient, "draw_noise", lambda self, rng: 0 * real(self, rng))


def test_the_command_says_what_is_claimed_and_what_the_attack_proves(monkeypatch, capsys):
    assert command(monkeypatch, *RECORDS) == 0
    out = capsys.readouterr().out
    assert out.startswith("record-level DP: 5,000 canaries, each in or out by a fair coin, 2 rounds of 4 steps; ")
    assert "everyone, unit record, δ = 1e-05: claimed ε 4.4; the strongest attack we ran proves at least" in out
    assert "Nothing contradicts a claim." in out
    assert "partition" not in out  # which is for noise on updates


def test_simulations_are_audited_with_secret_noise(monkeypatch, capsys):
    assert command(monkeypatch, *RECORDS, "--set", "privacy.noise=seeded") == 0
    assert "Nothing contradicts a claim." in capsys.readouterr().out


def test_without_a_file_records_are_audited_too(monkeypatch, capsys):
    monkeypatch.setattr(games, "everything", dict)
    assert command(monkeypatch) == 0
    out, err = capsys.readouterr()
    assert err == "auditing record-level DP\n"
    assert out.count("Nothing contradicts a claim.") == 1


def test_the_command_exits_with_1_when_a_claim_is_refuted(monkeypatch, capsys):
    silent(monkeypatch)
    assert command(monkeypatch, *RECORDS) == 1
    out = capsys.readouterr().out
    assert "CLAIM REFUTED" in out
    assert "LESS NOISE THAN CLAIMED" in out
    assert "A CLAIM IS CONTRADICTED." in out


def test_the_command_prints_json(monkeypatch, capsys):
    silent(monkeypatch)
    assert command(monkeypatch, *RECORDS, "--json") == 1
    (result,) = json.loads(capsys.readouterr().out)
    (finding,) = result["findings"]
    assert not result["passed"]
    assert finding["multiplier_bound"] < finding["multiplier_claimed"]
    assert finding["epsilon_bound"] > finding["epsilon_claimed"]
    deviation = next(one for one in result["training"]["measurements"] if one["what"] == "deviation")
    assert deviation["value"] < 1e-9 < deviation["least"]


def test_noise_on_updates_is_not_played_where_the_noise_is_in_the_training(monkeypatch, capsys):
    assert command(monkeypatch, *RECORDS, "--set", "protect.method=dp-fedavg") == 0
    assert "update" not in capsys.readouterr().out.splitlines()[0]


def test_the_command_refuses_before_it_says_that_it_audits(monkeypatch, capsys):
    assert command(monkeypatch, *RECORDS, "--set", "privacy.epsilon=inf") == 2
    out, err = capsys.readouterr()
    assert (out, err.splitlines()[0][:29]) == ("", "error: there is no noise to a")
