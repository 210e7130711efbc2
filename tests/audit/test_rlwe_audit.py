"""The audit opens sums under RLWE as clients do, finds nothing against the code, and finds planted faults."""

import pytest

from paraaegis.audit.games import play_games, stands
from paraaegis.audit.noise import as_claimed, check_noise
from paraaegis.cli import main
from paraaegis.privacy.gaussian import Gaussian
from paraaegis.privacy.guarantee import CLIENTS
from toy import configure

FEW = 500
BASE = ("protect.cipher=rlwe", "privacy.epsilon=1.0", "privacy.clip=1.0", "privacy.calibration=tight")
CONFIGS = {
    "serial": configure(*BASE, "protect.method=serial"),
    "shared": configure(*BASE, "protect.method=ckks-fedavg", "privacy.inside_clip=1.0"),
}


def halved(monkeypatch):
    real = Gaussian.perturb
    monkeypatch.setattr(Gaussian, "perturb", lambda self, v, n, rng, share=1.0: real(self, v, n, rng, share / 2))


@pytest.mark.parametrize("name", CONFIGS)
def test_games_prove_something_and_no_more_than_the_claim(name):
    findings = play_games(CONFIGS[name], FEW)
    assert findings
    assert all(stands(one) and one.mu_bound > 0.1 * one.mu_claimed for one in findings)
    assert {one.adversary for one in findings} == {CLIENTS}  # the server sees masked values only


@pytest.mark.parametrize("name", ["serial", "shared"])
def test_half_the_noise_is_proved_by_games_and_measured(name, monkeypatch):
    halved(monkeypatch)
    assert all(one.mu_bound > one.mu_claimed for one in play_games(CONFIGS[name], FEW))
    assert not any(as_claimed(part) for part in check_noise(CONFIGS[name], 2).parts)


def test_noise_is_as_claimed():
    assert check_noise(CONFIGS["shared"], 2).passed


def test_the_command_audits_a_configuration_with_this_cipher(monkeypatch, capsys):
    chosen = ["--set", "protect.method=serial", "--set", "protect.cipher=rlwe", "--trials", str(FEW)]
    monkeypatch.setattr("sys.argv", ["paraaegis", "audit", *chosen])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    assert "Nothing contradicts a claim." in capsys.readouterr().out
