"""`--metric` as it is typed, with sites that report AUC and recall by class, and one that has no AUC."""

import json
import re
import sys

import pytest

from machine import MACHINE
from paraaegis.cli import main
from paraaegis.planning import measure as measuring
from paraaegis.runs.folder import RunFolder
from paraaegis.runs.run import run_here
from screening import screening_experiment

CLIENTS, ROUNDS = 3, 4
SHAPE = [f"federation.clients={CLIENTS}", f"federation.rounds={ROUNDS}", "privacy.epsilon=inf", "privacy.clip=inf"]
PRESET = """
title = "Screening"
[config.federation]
clients = 3
rounds = 3
[splits.iid]
"data.split" = "iid"
[[rows]]
label = "fedavg"
set = { "protect.method" = "fedavg" }
[[rows]]
label = "feedback"
set = { "protect.method" = "paraaegis-feedback", "protect.ratio" = 0.2 }
"""


@pytest.fixture
def typed(monkeypatch, capsys, tmp_path):
    """Types a command; the exit status, what it printed and what it said."""
    monkeypatch.setattr("paraaegis.runs.experiment.torch_experiment", screening_experiment)
    monkeypatch.setattr(measuring, "measure", lambda *_, **__: MACHINE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)

    def type_in(*arguments):
        monkeypatch.setattr(sys, "argv", ["paraaegis", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            main()
        return stopped.value.code or 0, *capsys.readouterr()

    return type_in


@pytest.fixture
def run(typed):
    """Types `paraaegis run` in the folder `run`."""
    words = [word for setting in [*SHAPE, "protect.method=fedavg"] for word in ("--set", setting)]
    return lambda *arguments: typed("run", "--out", "run", *words, *arguments)


@pytest.fixture
def compare(typed, tmp_path):
    """Types `paraaegis compare` in the folder `compared`."""
    (tmp_path / "screening.toml").write_text(PRESET)
    return lambda *arguments: typed("compare", "--preset", "screening.toml", "--out", "compared", *arguments)


def rounds(out):
    return [line for line in out.splitlines() if line.startswith("  round ")]


def test_live_lines_show_the_chosen_metric_and_the_loss(run):
    code, out, _ = run("--metric", "recall_0")
    assert code == 0
    assert len(rounds(out)) == ROUNDS
    assert all(re.search(r"  recall_0 \d\.\d{3,4}  loss 0\.\d{4}  ", line) for line in rounds(out))
    assert not any("auc" in line for line in rounds(out))


def test_without_accuracy_the_first_metric_is_shown(run):
    _, out, _ = run()
    assert all("auc 0." in line and "recall" not in line for line in rounds(out))
    assert re.search(r"(?m)^result  auc 0\.\d+  recall_0 .*  recall_1 .*  loss ", out)


def test_a_run_ends_with_the_metric_of_every_site(run, tmp_path):
    _, out, _ = run("--metric", "recall_0")
    cells = [[cell.strip() for cell in re.split("[│┃]", line)[1:-1]] for line in out.splitlines() if "client-" in line]
    last = RunFolder(tmp_path / "run").read_records()[-1]
    assert [cell[:2] for cell in cells] == [["client-0", "40"], ["client-1", "50"], ["client-2", "60"]]
    assert [cell[2] for cell in cells[:2]] == [
        f"{last.sites[name]['recall_0']:#.4g}" for name in ("client-0", "client-1")
    ]
    assert cells[2][2] == ""  # its test data has no such class


def test_an_unknown_metric_is_refused_with_the_names_and_the_run_can_continue(run, tmp_path):
    code, _, err = run("--metric", "f1")
    assert code == 2
    assert err.splitlines()[-1] == (
        "error: metric must be one that was reported (auc, recall_0, recall_1, loss), got 'f1'; choose one of them "
        "with --metric, or omit it"
    )
    assert len(RunFolder(tmp_path / "run").read_records()) == 1
    assert run("--metric", "f1")[0] == 2
    code, out, _ = run("--metric", "auc")
    assert (code, len(rounds(out))) == (0, ROUNDS)
    assert run("--metric", "f1")[0] == 2  # also where the run is complete
    assert run("--metric", "f1", "--json")[0] == 2


def test_a_trial_of_a_federation_shows_it_too(typed, monkeypatch):
    def up(config, out, fresh, on_record, _):
        return run_here(config, out, fresh, on_record)

    monkeypatch.setattr("paraaegis.deploy.local_federation.up", up)
    words = [word for setting in [*SHAPE, "protect.method=fedavg"] for word in ("--set", setting)]
    code, out, _ = typed("federation", "up", *words, "--metric", "recall_1")
    assert code == 0
    assert all("recall_1" in line and "auc" not in line for line in rounds(out))
    assert "client-2" in out


def test_json_keeps_all_metrics_and_the_sites(run):
    _, out, _ = run("--metric", "recall_1", "--json")
    result = json.loads(out)
    assert list(result["metrics"]) == ["auc", "recall_0", "recall_1", "loss"]
    assert result["sites"]["client-2"]["auc"] is None
    assert result["samples"] == {"client-0": 40, "client-1": 50, "client-2": 60}


def test_a_comparison_shows_the_chosen_metric(compare, tmp_path):
    code, out, _ = compare("--metric", "auc")
    assert code == 0
    assert "accuracy" not in out
    assert "fficiency" not in out
    table = json.loads((tmp_path / "compared" / "table.json").read_text())
    assert table["metric"] == "auc"
    assert all(0 < row["value"] <= 1 and not {"accuracy", "efficiency"} & row.keys() for row in table["rows"])
    markdown = (tmp_path / "compared" / "table.md").read_text()
    assert "| method | auc iid | seconds iid | MB up | MB down |" in markdown
    assert f"| fedavg | {table['rows'][0]['value']:#.4g} |" in markdown
    assert "Auc against time" in (tmp_path / "compared" / "report.html").read_text()


def test_a_finished_comparison_can_show_another_metric(compare, tmp_path):
    compare()
    before = (tmp_path / "compared" / "table.json").read_text()
    assert json.loads(before)["metric"] == "auc"
    code, out, _ = compare("--metric", "loss")
    assert code == 0
    assert not rounds(out)
    assert "A lower loss is better." in out
    code, _, err = compare("--metric", "f1")
    assert (code, "auc, recall_0, recall_1, loss" in err) == (2, True)


def test_a_table_written_before_metrics_could_be_chosen_is_accepted(compare, tmp_path):
    compare()
    path = tmp_path / "compared" / "table.json"
    earlier = json.loads(path.read_text())
    del earlier["metric"]
    for row in earlier["rows"]:
        row |= {"accuracy": row.pop("value"), "efficiency": 1.0}
    path.write_text(json.dumps(earlier | {"diverged": {"feedback--iid--seed0": "too far"}}))
    (tmp_path / "compared" / "feedback--iid--seed0" / "result.json").unlink()
    _, out, _ = compare("--row", "fedavg")
    assert "No result: feedback--iid--seed0 (too far)." in out.replace("\n", " ")


def test_a_report_shows_the_chosen_metric_by_run_round_and_site(compare, typed, tmp_path):
    compare()
    code, _, _ = typed("report", "compared", "--metric", "loss", "--markdown", "report.md", "--png", "report.png")
    assert code == 0
    shown, markdown = (tmp_path / "report.html").read_text(), (tmp_path / "report.md").read_text()
    for text in ("Loss against time", "Loss against bytes", "Loss by round", "<th>loss</th>", "By site"):
        assert text in shown
    assert "ccuracy" not in re.sub(r"<script>/\*\*.*?</script>", "", shown, flags=re.DOTALL)
    assert "| run | loss | seconds |" in markdown
    assert "| run | site | samples | loss |" in markdown
    assert "plain averaging: loss 0." in markdown.splitlines()[0]
    assert markdown.count("| client-2 | 60 |") == 2


def test_the_headline_of_errors_names_the_lowest(compare, typed, tmp_path):
    compare()
    typed("report", "compared/feedback--iid--seed0", "--metric", "loss", "--markdown", "one.md")
    assert re.match(r"feedback\S* reached loss 0\.\d{4} in", (tmp_path / "one.md").read_text())


def test_a_report_refuses_a_metric_that_no_run_reported(compare, typed):
    compare()
    code, _, err = typed("report", "compared", "--metric", "f1")
    assert code == 2
    assert "must be one that was reported (auc, recall_0, recall_1, loss), got 'f1'" in err


def test_a_pilot_plans_with_the_chosen_metric(typed):
    words = [word for setting in SHAPE for word in ("--set", setting)]
    arguments = ("plan", *words, "--method", "paraaegis-feedback", "--pilot", "--pilot-rounds", "2")
    code, out, _ = typed(*arguments, "--metric", "loss", "--points", "5", "--json")
    answer = json.loads(out)
    assert code == 0
    assert answer["pilot"]["metric"] == answer["wish"]["metric"] == "loss"
    assert 0 < answer["pilot"]["plain"] < 1
    _, out, _ = typed(*arguments, "--metric", "loss")
    assert "loss above FedAvg after 2 rounds" in out
    code, _, err = typed(*arguments, "--metric", "f1")
    assert (code, "got 'f1'" in err) == (2, True)
    code, _, err = typed("plan", "--metric", "auc")
    assert (code, err) == (2, "error: --metric auc applies to a pilot run only; add --pilot\n")
