"""The statement of a run, of a silo's folder and of a file, and what an ε means in it."""

import json
import re

import numpy as np
import pytest
from scipy.stats import norm
from typer.testing import CliRunner

from nodes import Nodes
from paraaegis.cli.app import app
from paraaegis.errors import ConfigError, RunError
from paraaegis.privacy.calibrate import epsilon_of
from paraaegis.runs.folder import RunFolder
from paraaegis.runs.run import federate
from paraaegis.statement.facts import facts_of_folder
from paraaegis.statement.page import statement
from paraaegis.statement.reading import reading_of
from paraaegis.statement.render import as_markdown
from toy import configure
from toy_runs import toys

SETTINGS = ("federation.clients=3", "federation.rounds=2", "protect.method=dp-fedavg", "privacy.calibration=tight",
            "privacy.epsilon=2", "privacy.clip=1", "privacy.noise=secret")  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    federate(configure(*SETTINGS), toys(3), folder)
    return folder


def printed(*arguments):
    done = CliRunner().invoke(app, ["statement", *map(str, arguments)])
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.output


@pytest.mark.parametrize("mu", [0.1, 0.5, 1.0, 2.0, 4.0])
def test_a_reading_bounds_the_best_attack_and_is_close_to_it(mu):
    """Against one Gaussian the best attack is known."""
    reading = reading_of([(epsilon_of(mu, delta), delta) for delta in np.linspace(0.005, 0.95, 40)])
    guess, caught = norm.cdf(mu / 2), norm.cdf(norm.ppf(0.01) + mu)
    assert guess <= reading.guess < guess + 0.02
    assert caught <= reading.caught < 1.3 * caught


@pytest.mark.parametrize(
    ("epsilon", "delta", "guess", "caught"),
    [(0, 0, 0.5, 0.01), (1, 0, 0.7311, 0.0272), (5000, 1e-5, 1, 1)],
)
def test_a_single_figure_means_what_its_definition_says(epsilon, delta, guess, caught):
    reading = reading_of([(epsilon, delta)])
    assert (reading.guess, reading.caught) == (pytest.approx(guess, abs=1e-4), pytest.approx(caught, abs=1e-4))
    assert reading.useless == (epsilon > 100)


def test_a_runs_figures_are_those_of_its_ledger(run):
    facts, text = facts_of_folder(run), printed(run)
    up = sum(sum(record.bytes_up.values()) for record in RunFolder(run).read_records()) / 3
    assert facts.traffic[0] == pytest.approx(up)
    assert "trained one model together, in 2 rounds" in text
    assert "once per round, 2 in all" in text
    assert facts.guarantees.guarantees[0].figure in text
    assert "100.0% of the budget (unit: client) is spent" in text
    assert "6 × whole update" in text
    assert "simulation" not in text
    spent = json.loads(CliRunner().invoke(app, ["privacy", str(run), "--json"]).output)["spent"]
    assert spent["releases"]["update"] == 6


def test_privacy_and_a_statement_use_the_same_sentences(run, tmp_path):
    flat = re.sub(r"\s+", " ", CliRunner().invoke(app, ["privacy", str(run)]).output)
    (line,) = re.findall(r"Recorded in 2 rounds: .*? is spent\.", flat)
    assert line in printed(run)
    (tmp_path / "seeded.toml").write_text('[privacy]\ncalibration = "tight"\n')
    flat = re.sub(r"\s+", " ", CliRunner().invoke(app, ["privacy", str(tmp_path / "seeded.toml")]).output)
    first = printed(tmp_path / "seeded.toml").split("\n\n")[2]
    assert first.startswith("This is a simulation and protects nobody")
    assert first in flat


def test_a_silos_folder_is_spoken_of_as_this_site(tmp_path):
    nodes = Nodes(tmp_path, "paraaegis-feedback", 3, "protect.cipher=rlwe", "federation.rounds=2")
    nodes.serve()
    text = printed(nodes.folders["client-0"])
    assert text.startswith("# Data protection statement: this site's part")
    assert "## What leaves this site" in text
    assert "once per round, 2 in all" in text
    assert "The ledger of this site, over all its runs" in text
    assert "The server | Cannot read it: encrypted" in text
    assert "metrics" not in text  # which this silo does not share


def test_a_page_is_written_by_its_suffix(run, tmp_path):
    for name in ("page.md", "page.html"):
        assert printed(run, "--out", tmp_path / name) == f"{tmp_path / name}\n"
    assert (tmp_path / "page.md").read_text() == as_markdown(statement(facts_of_folder(run)))
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")
    sections = json.loads(printed(run, "--json"))["sections"]
    assert [one["title"] for one in sections][:2] == ["In short", "What leaves each site"]
    with pytest.raises(ConfigError, match=r"--out writes a \.md or \.html file, got"):
        printed(run, "--out", tmp_path / "page.pdf")


def test_what_is_no_run_is_refused(run, tmp_path):
    with pytest.raises(RunError, match="is not a run's folder"):
        printed(tmp_path)
    with pytest.raises(ConfigError, match="--set cannot change what it released"):
        printed(run, "--set", "privacy.epsilon=1")


def test_text_from_a_folder_cannot_become_markup(tmp_path):
    folder = tmp_path / "<b>run|x"
    federate(configure(*SETTINGS), toys(3), folder)
    printed(folder, "--out", tmp_path / "page.html")
    assert "<b>" not in (tmp_path / "page.html").read_text()
    assert "<b>run\\|x" in printed(folder)
