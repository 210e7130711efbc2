"""The command line tells its version, and shows an example wherever it helps."""

import inspect
import json
import sys

import pytest
from typer.main import get_command

from paraaegis import __version__
from paraaegis.cli import main
from paraaegis.cli.app import app
from paraaegis.cli.tables import summary
from paraaegis.config import make_config
from paraaegis.errors import ConfigError
from paraaegis.runs.result import Result

COMMANDS = get_command(app).commands
ALL = [sub for command in COMMANDS.values() for sub in (command, *getattr(command, "commands", {}).values())]


def told(monkeypatch, capsys, *arguments):
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(sys, "argv", ["paraaegis", *arguments])
    with pytest.raises(SystemExit) as stopped:
        main()
    out, err = capsys.readouterr()
    return stopped.value.code, out, err


def test_the_version_is_the_packages(monkeypatch, capsys):
    assert told(monkeypatch, capsys, "--version") == (0, f"paraaegis {__version__}\n", "")


def test_help_names_every_command(monkeypatch, capsys):
    code, out, _ = told(monkeypatch, capsys, "--help")
    assert code == 0
    assert "run" in COMMANDS
    assert [name for name in COMMANDS if name not in out] == []


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("option", ["--help", "-h"])
def test_every_commands_help_has_an_example_of_itself(monkeypatch, capsys, name, option):
    code, out, _ = told(monkeypatch, capsys, name, option)
    assert code == 0
    assert f"Example: paraaegis {name}" in " ".join(out.split())


@pytest.mark.parametrize("command", ALL, ids=lambda command: command.name)
def test_help_breaks_no_line_within_a_sentence(command):
    """Typer fills the first paragraph to the terminal's width, but keeps every line break of the others."""
    _, *paragraphs = inspect.cleandoc(command.help).split("\n\n")
    assert [text for text in paragraphs if "\n" in text] == []


def test_the_options_of_run_are_explained(monkeypatch, capsys):
    _, out, _ = told(monkeypatch, capsys, "run", "--help")
    assert [option for option in ("--set", "--out", "--fresh", "--json") if option not in out] == []


@pytest.mark.parametrize("arguments", [("fly",), ("run", "--high"), ("run", "--set"), ("run", "a", "b")])
def test_a_command_that_does_not_exist_is_a_usage_error(monkeypatch, capsys, arguments):
    code, out, err = told(monkeypatch, capsys, *arguments)
    assert (code, out) == (2, "")
    assert "Error" in err
    assert "Traceback" not in err


@pytest.mark.parametrize("arguments", [("rum",), ("keys", "mew"), ("federation", "upp"), ("bench", "rond")])
def test_a_mistyped_command_is_corrected_once(monkeypatch, capsys, arguments):
    _, _, err = told(monkeypatch, capsys, *arguments)
    assert err.count("Did you mean") == 1


def test_without_a_command_help_is_shown(monkeypatch, capsys):
    _, out, err = told(monkeypatch, capsys)
    assert "Usage: paraaegis" in out + err


@pytest.mark.parametrize("setting", ["ratio=0.1", "protect.ratio=1.5", "protect.ratio"])
def test_a_refused_setting_is_one_clear_line_and_code_two(monkeypatch, capsys, setting):
    code, out, err = told(monkeypatch, capsys, "run", "--set", setting)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert "ratio" in err


def test_one_of_anything_is_singular(capsys):
    summary(Result(method="fedavg", rounds=1, metrics={}, seconds=2.0, bytes_up=1, bytes_down=1, folder="run"))
    assert "2.0 s for 1 round\n" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="must be at most the 1 client of a round, got 2"):
        make_config({}, ["federation.clients=1", "federation.quorum=2"])


@pytest.mark.parametrize(("stop_metric", "best"), [("", "accuracy"), ("loss", "loss"), ("f1", "accuracy")])
def test_a_result_names_its_figures_and_what_its_best_round_is_best_in(capsys, stop_metric, best):
    metrics = {"auc": 0.966, "accuracy": 0.813, "loss": 0.5}
    given = {"seconds": 2.0, "bytes_up": 1, "bytes_down": 1, "folder": "run"}
    summary(Result(method="fedavg", rounds=3, best_round=2, metrics=metrics, **given), stop_metric=stop_metric)
    out = capsys.readouterr().out
    assert "result  accuracy 81.3 %  auc 0.9660  loss 0.5000\n" in out
    assert f"best    {best} after round 2\n" in out


def test_an_interrupted_run_says_how_to_go_on(monkeypatch, capsys):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("paraaegis.runs.experiment.torch_experiment", interrupted)
    code, _, err = told(monkeypatch, capsys, "run")
    assert code == 130
    assert "continues from the last checkpoint" in err
    monkeypatch.setattr("paraaegis.runs.guarantees.resolve", interrupted)
    assert told(monkeypatch, capsys, "privacy")[::2] == (130, "stopped\n")  # where there is nothing to go on with


def test_nothing_of_the_users_is_overwritten(monkeypatch, capsys, tmp_path):
    (tmp_path / "pyproject.toml").write_text("mine")
    code, _, err = told(monkeypatch, capsys, "federation", "app", str(tmp_path))
    assert (code, (tmp_path / "pyproject.toml").read_text()) == (2, "mine")
    assert "exists and will not be overwritten" in err
    assert list(tmp_path.iterdir()) == [tmp_path / "pyproject.toml"]
    for option, name, suffix in (
        ("--out", "a.md", ".html"),
        ("--png", "a.txt", ".png"),
        ("--markdown", "a.html", ".md"),
    ):
        code, _, err = told(monkeypatch, capsys, "report", str(tmp_path), option, str(tmp_path / name))
        assert code == 2
        assert f"{option} writes a {suffix} file" in err


def test_settings_lists_every_key_with_its_default(monkeypatch, capsys):
    code, out, _ = told(monkeypatch, capsys, "settings")
    assert code == 0
    assert (
        "protect.ratio           0.1                   r₀, share of the values that is encrypted (number ≥ 0, ≤ 1)"
        in out
    )
    _, printed, _ = told(monkeypatch, capsys, "settings", "--json")
    assert [key["name"] for key in json.loads(printed)] == [line.split()[0] for line in out.splitlines()]


def test_help_says_what_an_argument_is(monkeypatch, capsys):
    _, out, _ = told(monkeypatch, capsys, "audit", "--help")
    assert "A TOML file. Without it and --set, every noised method and record-level DP are audited." in out
