"""A run ends with one line on privacy, and asks for no ε that nothing is calibrated to."""

import pytest

from paraaegis.config import make_config
from paraaegis.errors import ConfigError
from paraaegis.runs.check import check_budget
from paraaegis.runs.guarantees import privacy_line
from paraaegis.runs.run import federate
from toy_runs import toy_config, toys

ADVERSARIES = ("server and network", "fellow clients", "holders of the model", "server with 1 client")
NOISED = ("privacy.clip=1.0", "federation.quorum=2")


def run(folder, method, *settings):
    federate(toy_config(f"protect.method={method}", *settings), toys(), folder)


@pytest.mark.parametrize(
    ("method", "settings", "told"),
    [
        ("fedavg", (), f"and every record in it: no protection against {', '.join(ADVERSARIES)}"),
        ("paraaegis-feedback", ("protect.ratio=0.5",),
         "and every record in it: encryption against server and network; no protection against fellow clients, "),
        ("dp-fedavg", ("privacy.epsilon=2", *NOISED),
         f"ε = 2, δ = 1e-05, unit: client against {', '.join(ADVERSARIES)}; 100% of the budget is spent"),
        ("paraaegis-static", ("privacy.epsilon=2", "protect.ratio=0.5", *NOISED),
         "ε = 2, δ = 1e-05, unit: client (given the partition) against server and network; no protection against "),
    ],
)  # fmt: skip
def test_a_run_says_who_is_protected_by_what(tmp_path, method, settings, told):
    run(tmp_path, method, *settings)
    line = privacy_line(tmp_path)
    assert told in line
    assert line.startswith("a simulation, which protects nobody")
    secret = tmp_path / "secret"
    run(secret, method, *settings, "privacy.noise=secret")
    assert "simulation" not in privacy_line(secret)


def test_an_epsilon_that_nothing_is_calibrated_to_is_refused():
    with pytest.raises(ConfigError, match=r"privacy\.epsilon = 0\.1 has no effect, since paraaegis-feedback adds no"):
        check_budget(make_config({}, ["protect.method=paraaegis-feedback", "privacy.epsilon=0.1"]))
    for allowed in (["protect.method=dp-fedavg"], ["privacy.unit=record"], ["privacy.inside_clip=1.0"]):
        check_budget(make_config({}, ["protect.method=ckks-fedavg", "privacy.epsilon=0.1", *allowed]))
