"""`paraaegis plan` and `paraaegis report` as they are typed."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from machine import MACHINE
from paraaegis.cli import main
from paraaegis.config import load_config
from paraaegis.planning import measure as module
from toy import compared

PLAN = ("plan", "--model", "1000000", "--clients", "5", "--rounds", "10")


@pytest.fixture
def typed(monkeypatch, capsys, tmp_path):
    """Types a command on the machine of the tests; the exit status, what it printed and said."""
    monkeypatch.setattr(module, "measure", lambda *_, **__: MACHINE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def type_in(*arguments):
        monkeypatch.setattr(sys, "argv", ["paraaegis", *map(str, arguments)])
        try:
            main()
            code = 0
        except SystemExit as stopped:
            code = stopped.code or 0
        return code, *capsys.readouterr()

    return type_in


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    updates = np.random.default_rng(0).uniform(0, 0.3, (3, 2, 50)).astype(np.float32)
    return compared(tmp_path_factory.mktemp("comparison"), updates, {"fedavg": [], "paraaegis-feedback": []})


def test_a_plan_within_a_limit_is_shown_with_its_neighbours_and_guarantees(typed):
    code, out, _ = typed(*PLAN, "--megabytes", "100")
    assert code == 0
    training = "Training time is not included"
    for text in ("cheaper", "chosen", "better", "paraaegis-feedback", "server and network", training):
        assert text in out


def test_a_plan_as_json_says_the_same_and_keeps_the_limit(typed):
    _, out, _ = typed(*PLAN, "--megabytes", "100", "--json")
    answer = json.loads(out)
    choice = answer["choice"]
    assert answer["fits"]
    assert choice["estimate"]["bytes_up"] + choice["estimate"]["bytes_down"] <= 100e6
    assert [one["method"] for one in answer["references"]] == ["fedavg", "ckks-fedavg"]


@pytest.mark.parametrize(("arguments", "said"), [
    (("plan", "--pilot-rounds", "3"), "--pilot-rounds 3 applies to a pilot run only; add --pilot"),
    (("privacy", "--decay", "0.9"), "which paraaegis-feedback does not add"),
])  # fmt: skip
def test_an_option_that_would_do_nothing_is_refused(typed, arguments, said):
    code, _, err = typed(*arguments)
    assert code == 2
    assert said in err


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_a_wish_that_nothing_fulfils_gets_the_nearest_exits_with_1_and_writes_nothing(typed, tmp_path, form):
    given = ("--model", "mlp", "--megabytes", "0.001", "--write", tmp_path / "plan.toml")
    code, out, _ = typed("plan", *given, *form)
    assert code == 1
    assert not (tmp_path / "plan.toml").exists()
    if form:
        assert not json.loads(out)["fits"]
    else:
        assert "No ratio fits; the nearest: " in out
        assert "nothing was written to" in out


def test_a_plan_is_written_as_a_configuration_that_can_be_run(typed, tmp_path):
    given = ("--model", "mlp", "--clients", "5", "--rounds", "10", "--bandwidth", "100")
    code, _, _ = typed("plan", *given, "--epsilon", "4", "--megabytes", "200", "--write", tmp_path / "plan.toml")
    config = load_config(tmp_path / "plan.toml")
    assert (config.model.name, config.engine.name) == ("mlp", "flower")
    assert 0 < config.protect.ratio < 1  # with all values encrypted nothing would be noised
    assert code == 0
    assert (config.protect.method, config.privacy.epsilon) == ("paraaegis-static", 4.0)
    assert (config.privacy.calibration, config.privacy.noise) == ("tight", "secret")
    assert (config.federation.clients, config.federation.rounds) == (5, 10)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--points", "2"), "add --pilot"),
        (("--seconds", "0"), "--seconds must be above 0, got 0"),
        (("--bandwidth", "-5"), "--bandwidth must be above 0, got -5"),
        (
            ("--model", "gpt"),
            "--model must be a number of values or one of mlp, cnn, resnet18, cnn-tanh, cnn-gn, resnet18-gn, got 'gpt'",
        ),
        (("--method", "fedavg"), "a ratio can be planned for"),
        (("--clients", "0"), "'--clients'"),
        (("--train-seconds", "-5"), "--train-seconds must be above 0, got -5"),
        (("--model", "1e6", "--pilot"), "--pilot trains a model, but --model 1e6 is a number of values"),
        (("--model", "1000", "--write", "plan.toml"), "--write names a model"),
        (("--write", "nowhere/plan.toml"), f"--write: folder {Path('nowhere').resolve()} does not exist"),
        (("--write", "README.md"), "--write writes a .toml file, got README.md"),
        (
            ("--write", str(Path(__file__).parents[2] / "configs" / "digits.toml")),
            "exists; name another file or remove it",
        ),
        (("--epsilon", "1", "--method", "paraaegis-feedback"), "adds no noise, so --epsilon would have no effect"),
    ],
)
def test_what_cannot_be_planned_is_refused_in_a_line(typed, arguments, told):
    code, out, err = typed("plan", *arguments)
    assert (code, out) == (2, "")
    assert told in err


@pytest.mark.parametrize(("name", "data", "values"), [
    ("resnet18", "imagenette", 11_191_242),
    ("mlp", "digits", 9_610),
])  # fmt: skip
def test_a_model_is_counted_by_its_name_for_the_configurations_data(typed, name, data, values):
    _, out, _ = typed("plan", "--model", name, "--set", f"data.name={data}", "--json")
    assert json.loads(out)["wish"]["length"] == values


def test_an_exact_epsilon_and_the_papers_calibration_are_refused_together(typed):
    code, _, err = typed("plan", "--epsilon", "1", "--set", "privacy.calibration=paper")
    assert code == 2
    assert "--epsilon needs exact accounting, got --set privacy.calibration=paper" in err


STATIC = ("--set", "protect.method=paraaegis-static")


def test_set_wins_over_a_named_option_and_the_noise_in_force_is_shown(typed):
    _, out, _ = typed("privacy", *STATIC, "--epsilon", "1", "--set", "privacy.epsilon=3", "--json")
    assert json.loads(out)["guarantees"][0]["epsilon"] == pytest.approx(3, rel=1e-3)
    _, out, _ = typed("privacy", *STATIC, "--set", "privacy.sigma=3")
    assert "σ = 3 per coordinate" in out
    _, out, _ = typed("privacy", "--set", "protect.method=fedavg")
    assert "fedavg: no noise" in out
    assert "calibration" not in out
    _, out, _ = typed("privacy", "--set", "protect.method=ckks-fedavg", "--set", "privacy.inside_clip=0.1", "--json")
    found = json.loads(out)
    assert found["sigma"] == pytest.approx(found["calibrations"][0]["sigma"])


def test_a_pilot_measures_training_and_accuracy_on_the_configurations_data(typed):
    arguments = ("--set", "federation.clients=3", "--set", "model.name=mlp", "--pilot", "--pilot-rounds", "2")
    code, out, _ = typed("plan", *arguments, "--points", "90", "--json")
    answer = json.loads(out)
    assert code == 0
    assert answer["wish"]["train"] > 0
    assert set(answer["pilot"]["by_ratio"]) == {"0.01", "0.05", "0.2"}
    assert 0 <= answer["choice"]["points_lost"] <= 90


def test_a_plan_of_seeded_noise_says_that_it_guarantees_nothing(typed):
    _, out, _ = typed(*PLAN, "--epsilon", "2", "--set", "privacy.noise=seeded")
    assert "This is a simulation and protects nobody" in out


def test_a_report_comes_with_a_picture_and_markdown(typed, comparison, tmp_path):
    out = {name: tmp_path / f"report.{name}" for name in ("html", "png", "md")}
    code, said, _ = typed("report", comparison, "--out", out["html"], "--png", out["png"], "--markdown", out["md"])
    assert code == 0
    assert said.split() == [str(path) for path in out.values()]
    assert out["png"].read_bytes().startswith(b"\x89PNG")
    assert "| fedavg |" in out["md"].read_text()
    assert 'id="explorer"' in out["html"].read_text()


def test_a_machine_is_measured_once_a_day(typed, comparison, tmp_path, monkeypatch):
    measured = []
    monkeypatch.setattr(module, "measure", lambda *_, **__: measured.append(1) or MACHINE)
    monkeypatch.setattr(module.os, "cpu_count", lambda: MACHINE.cores)
    for _ in range(2):
        typed("report", comparison, "--out", tmp_path / "report.html")
    assert measured == [1]


def test_a_watched_page_is_kept_fresh_until_it_is_interrupted(comparison, tmp_path):
    folder, out = tmp_path / "runs", tmp_path / "report.html"
    run = folder / "fedavg--iid--seed0"
    run.mkdir(parents=True)
    source = comparison / "fedavg--iid--seed0"
    first, second = (source / "rounds.jsonl").read_text().splitlines(keepends=True)
    (run / "config.toml").write_bytes((source / "config.toml").read_bytes())
    (run / "rounds.jsonl").write_text(first)
    command = [sys.executable, "-m", "paraaegis", "report", str(folder), "--out", str(out), "--watch"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as watching:
        _until(out.exists)
        assert "(running)" in out.read_text()
        assert 'http-equiv="refresh"' in out.read_text()
        before = out.stat().st_mtime_ns
        (run / "rounds.jsonl").write_text(first + second)
        _until(lambda: out.stat().st_mtime_ns > before)
        watching.send_signal(signal.SIGINT)
        assert watching.wait(timeout=30) == 0
    assert 'http-equiv="refresh"' not in out.read_text()


def _until(done):
    until = time.monotonic() + 60
    while not done():
        assert time.monotonic() < until
        time.sleep(0.2)
