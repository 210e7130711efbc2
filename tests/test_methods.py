"""The registry owns the methods: what else there is to know of one follows from its entry."""

import ast
from pathlib import Path
from typing import get_args, get_type_hints

import numpy as np
import pytest
from typer.testing import CliRunner

import paraaegis
from paraaegis.cli.app import app
from paraaegis.config import Config, make_config
from paraaegis.config.schema import Engine
from paraaegis.errors import ConfigError
from paraaegis.launch import RUNNERS
from paraaegis.methods import METHODS, find_method, method_of, parallel, whole
from paraaegis.parts import Encrypted, Lwe, Plain
from paraaegis.planning.cost import priced_as
from paraaegis.planning.measure import measure
from paraaegis.planning.planner import Request, recommend
from paraaegis.privacy.budget import constant, geometric
from paraaegis.report.collect import collect
from paraaegis.report.explorer import explorer
from paraaegis.report.page import write_page
from paraaegis.runs.guarantees import run_guarantees
from toy import compared, play

SOURCES = Path(paraaegis.__file__).parent
NEW = "noised-feedback"  # elected values noised and encrypted, the rest withheld
NOISE = ("privacy.epsilon=8.0", "privacy.clip=1.0", "privacy.calibration=tight")
UPDATES = np.random.default_rng(3).normal(0, 0.05, (3, 2, 400)).astype(np.float32)


@pytest.fixture
def registered(monkeypatch):
    monkeypatch.setitem(METHODS, NEW, parallel("a test's own", elected=Encrypted(constant), rest=None))


def test_a_method_is_compared_with_by_name_nowhere_else():
    """Everything else asks the registry what a method does. The default of a configuration is a name, too."""
    found = [
        (path.relative_to(SOURCES).as_posix(), node.value)
        for path in SOURCES.rglob("*.py")
        if path != SOURCES / "methods.py"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in METHODS
    ]
    assert found == [("config/schema.py", Config().protect.method)]
    page = "".join(path.read_text(encoding="utf-8") for path in SOURCES.rglob("*.js"))
    assert not [name for name in METHODS if f'"{name}"' in page]


def test_the_readme_and_the_threat_model_list_every_method():
    root = Path(__file__).parents[1]
    for document in (root / "README.md", root / "docs" / "threat-model.md"):
        rows = [
            line.split("|")[1] for line in document.read_text(encoding="utf-8").splitlines() if line.startswith("|")
        ]
        named = [name for row in rows for name in METHODS if f"`{name}`" in row]
        assert set(named) == set(METHODS), document


def test_every_engine_of_the_configuration_has_a_runner():
    assert list(RUNNERS) == list(get_args(get_type_hints(Engine)["name"]))


def test_a_new_method_runs_and_is_known_to_the_command_line(registered, tmp_path):
    played = play(UPDATES, f"protect.method={NEW}", "protect.ratio=0.25", *NOISE, rounds=2)
    assert [line.elected for line in played.lines] == [100, 100]
    assert set(played.lines[0].bytes_up) == {"header", "ballot", "ckks"}
    assert played.residual("client-0") is not None
    listed = CliRunner().invoke(app, ["methods"])
    assert NEW in listed.output
    assert "a test's own" in listed.output


def test_a_new_method_has_guarantees_and_an_audit(registered):
    from paraaegis.audit.games import everything

    told = run_guarantees(make_config({}, [f"protect.method={NEW}", "privacy.calibration=tight"]))
    assert told.sigma > 0
    assert {one.adversary for one in told.guarantees} >= {"server and network", "fellow clients"}
    assert NEW in everything()


def test_a_new_method_is_compared_reported_and_planned(registered, tmp_path):
    folder = compared(tmp_path / "all", UPDATES, {"fedavg": (), NEW: ("protect.ratio=0.25", *NOISE)})
    runs, problems = collect([folder])
    assert not problems
    assert {run.result.method for run in runs} == {"fedavg", NEW}
    machine = measure("precise", ["fedavg", "ckks-fedavg", NEW])
    assert priced_as(NEW) == NEW
    data = explorer(machine, runs)
    assert NEW in data["methods"]
    assert NEW in data["noised"]
    assert NEW in data["decaying"]
    assert next(run for run in data["measured"] if run["method"] == NEW)["elects"]
    write_page(runs, problems, tmp_path / "report.html", machine=machine)
    assert f"<option>{NEW}</option>" in (tmp_path / "report.html").read_text(encoding="utf-8")
    config = make_config({}, [f"protect.method={NEW}", "privacy.calibration=tight", "federation.clients=3"])
    assert recommend(config, Request(length=400, megabytes=1.0), machine).choice.method == NEW


def test_two_methods_cost_the_same_when_they_differ_in_their_noise_or_ratio_alone():
    assert priced_as("varying-dp") == "dp-fedavg"
    assert priced_as("paraaegis-dynamic") == "paraaegis-static"
    assert {name for name in METHODS if priced_as(name) == name} == set(METHODS) - {"varying-dp", "paraaegis-dynamic"}


def test_both_halves_of_every_method_agree():
    for name, method in METHODS.items():
        settings = [f"protect.method={name}", "privacy.calibration=tight", "federation.quorum=10"]
        config = make_config({}, settings)
        client, server = method.client(config), method.server(config)
        assert client.votes == server.votes == method.votes
        assert [part.what for part in client.exposures] == list(method.parts)
        assert server.keyed == any(part.server != "clear" for part in client.exposures)
        assert method.noised == any(part.noise for part in client.exposures)


def test_what_a_method_is_follows_from_its_parts():
    assert whole("", Plain()).ciphers(Config()) == set()
    assert whole("", Encrypted()).ciphers(Config(protect={"cipher": "rlwe"})) == {"rlwe"}
    assert not whole("", Plain()).noised
    assert whole("", Plain(geometric)).varies
    assert not whole("", Plain(constant)).varies
    assert whole("", Encrypted()).sums_clean_values
    assert not whole("", Encrypted(constant)).sums_clean_values
    assert parallel("", Encrypted(), None).withholds
    assert not parallel("", Encrypted(), Plain(constant)).withholds


def test_a_part_that_masks_whole_updates_is_refused_as_one_of_two():
    with pytest.raises(ValueError, match="Lwe protects whole updates only"):
        parallel("", elected=Lwe(), rest=Plain(constant))
    with pytest.raises(ValueError, match="Lwe protects whole updates only"):
        parallel("", elected=Encrypted(), rest=Lwe())


def test_elected_values_in_clear_are_not_called_encrypted(monkeypatch):
    monkeypatch.setitem(METHODS, NEW, parallel("", elected=Plain(), rest=None))
    told = run_guarantees(make_config({}, [f"protect.method={NEW}"]))
    reasons = {one.adversary: one.why for one in told.guarantees}
    assert reasons["server and network"].startswith("it sees values in the clear")
    assert "encrypted" not in reasons["fellow clients"]


def checked(*settings, length=None):
    config = make_config({}, settings)
    method_of(config).check(config, length)


def test_a_static_ratio_cannot_decay():
    with pytest.raises(ConfigError, match=r"protect.decay must be 1.0, got 0.9; use method paraaegis-dynamic"):
        checked("protect.method=paraaegis-static", "protect.decay=0.9", "federation.min_samples=10")
    checked("protect.method=paraaegis-dynamic", "protect.decay=0.9", "federation.min_samples=10")


def test_a_method_that_would_send_nothing_is_refused():
    with pytest.raises(ConfigError, match=r"protect\.ratio must be above 0"):
        checked("protect.method=paraaegis-feedback", "protect.ratio=0")
    checked("protect.method=paraaegis-feedback", "protect.ratio=0.001")
    with pytest.raises(ConfigError, match="elects none of 400 values in round 15"):
        checked("protect.method=paraaegis-feedback", "protect.ratio=0.001", length=400)


def test_a_series_of_noise_needs_all_its_rounds():
    capped = ("privacy.calibration=tight", "federation.fraction=0.5", "privacy.participations=10")
    with pytest.raises(ConfigError, match=r"privacy\.participations requires equal noise in every round"):
        checked("protect.method=varying-dp", *capped)
    checked("protect.method=dp-fedavg", *capped)


def test_an_unknown_method_is_named_with_the_nearest_one():
    with pytest.raises(ConfigError, match=r"got 'fedavgs' \(did you mean 'fedavg'\?\)"):
        find_method("fedavgs")


def test_a_refusal_names_the_file_or_the_row_of_a_preset(tmp_path):
    (tmp_path / "small.toml").write_text('[protect]\nmethod = "paraaegis-static"\n')
    done = CliRunner().invoke(app, ["run", str(tmp_path / "small.toml"), "--set", "protect.decay=0.9"])
    assert str(done.exception).startswith(
        f"{tmp_path / 'small.toml'} with --set: paraaegis-static has a constant ratio"
    )
    (tmp_path / "grid.toml").write_text(
        'title = "t"\n[splits.iid]\n"data.split" = "iid"\n'
        '[[rows]]\nlabel = "b"\nset = { "protect.method" = "paraaegis-static", "protect.decay" = 0.9 }\n'
    )
    done = CliRunner().invoke(app, ["compare", "--preset", str(tmp_path / "grid.toml"), "--out", str(tmp_path / "out")])
    assert str(done.exception).startswith("row 'b' in split 'iid': paraaegis-static has a constant ratio")
    assert not (tmp_path / "out").exists()
