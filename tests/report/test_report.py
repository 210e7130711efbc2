"""A report shows what lies in run folders, names what it cannot show, and takes nothing from a network."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Annotation, Text

from machine import MACHINE
from paraaegis.errors import ParaAegisError
from paraaegis.report.collect import collect
from paraaegis.report.explorer import explorer
from paraaegis.report.figures import figures, pareto
from paraaegis.report.findings import headline, over_seeds
from paraaegis.report.page import page
from paraaegis.report.picture import draw, finish, markdown
from paraaegis.runs.run import federate
from toy import compared, configure, learners_of

UPDATES = np.random.default_rng(0).uniform(0, 0.3, (3, 2, 50)).astype(np.float32)
METHODS = {
    "fedavg": [],
    "paraaegis-static": ["protect.ratio=0.1", "privacy.epsilon=1.0", "privacy.clip=1.0"],
    "paraaegis-feedback": ["protect.ratio=0.1"],
}


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    return compared(tmp_path_factory.mktemp("comparison"), UPDATES, METHODS)


def test_every_complete_run_is_found_by_its_comparison_or_by_itself(comparison):
    whole, problems = collect([comparison])
    assert sorted(run.result.method for run in whole) == sorted(METHODS)
    assert problems == []
    alone, _ = collect([comparison / "fedavg--iid--seed0"])
    assert [run.label for run in alone] == ["fedavg--iid--seed0"]
    assert sorted(run.label for run in whole) == sorted(METHODS)


def test_broken_and_unfinished_runs_are_named_and_the_rest_is_shown(comparison, tmp_path):
    out = tmp_path / "copy"
    shutil.copytree(comparison, out)
    (out / "fedavg--iid--seed0" / "result.json").unlink()
    (out / "paraaegis-static--iid--seed0" / "rounds.jsonl").write_text("{}\n")
    runs, problems = collect([out])
    assert [run.result.method for run in runs] == ["paraaegis-feedback"]
    assert len(problems) == 2
    assert "fedavg--iid--seed0: it is not complete" in problems[0]
    shown = page(runs, problems)
    assert "Skipped or incomplete" in shown
    assert "fedavg--iid--seed0" in shown


def test_the_explorer_opens_as_the_runs_were(comparison):
    runs, _ = collect([comparison])
    whole = explorer(MACHINE, runs)
    assert (whole["start"]["method"], whole["start"]["ratio"]) == ("paraaegis-feedback", 0.1)
    noised = explorer(MACHINE, [run for run in runs if run.result.method == "paraaegis-static"])
    assert noised["start"]["method"] == "paraaegis-static"
    assert noised["budgets"][noised["start"]["budget"]]["epsilon"] == 1.0
    plain = explorer(MACHINE, [run for run in runs if run.result.method == "fedavg"])
    assert plain["start"]["method"] == "fedavg"


def cut(path, lines):
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:lines]))


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda run: cut(run / "rounds.jsonl", 1), "its rounds.jsonl has 1 of 2 rounds"),
        (lambda run: cut(run / "ledger.jsonl", 4), "ledger.jsonl is incomplete"),
        (lambda run: (run / "config.toml").unlink(), "its config.toml cannot be read"),
        (lambda run: (run / "config.toml").write_text("["), "its config.toml cannot be read"),
        (lambda run: (run / "result.json").write_text("{"), "result.json is damaged"),
    ],
)
def test_a_run_that_is_not_whole_is_left_out_by_name(comparison, tmp_path, spoil, told):
    shutil.copytree(comparison, tmp_path / "copy")
    spoil(tmp_path / "copy" / "paraaegis-static--iid--seed0")
    runs, problems = collect([tmp_path / "copy"])
    assert sorted(run.result.method for run in runs) == ["fedavg", "paraaegis-feedback"]
    assert len(problems) == 1
    assert "paraaegis-static--iid--seed0" in problems[0]
    assert told in problems[0]


def test_a_run_without_its_ledger_is_shown_and_named(comparison, tmp_path):
    shutil.copytree(comparison, tmp_path / "copy")
    (tmp_path / "copy" / "fedavg--iid--seed0" / "ledger.jsonl").unlink()
    runs, problems = collect([tmp_path / "copy"])
    assert len(runs) == 3
    assert problems == ["fedavg--iid--seed0: it has no ledger, so its guarantees are not shown"]


def test_a_folder_that_is_given_twice_is_shown_once_and_equal_names_are_told_apart(comparison, tmp_path):
    assert len(collect([comparison, comparison / "fedavg--iid--seed0"])[0]) == 3
    shutil.copytree(comparison, tmp_path / "copy")
    runs, _ = collect([comparison, tmp_path / "copy"])
    assert len({run.label for run in runs}) == 6
    assert "copy/fedavg" in {run.label for run in runs}


def test_runs_that_differ_in_more_than_their_protection_are_not_compared(comparison, tmp_path):
    config = configure("federation.clients=3", "federation.rounds=1", "protect.method=fedavg")
    federate(config, learners_of(UPDATES), tmp_path / "short")
    runs, _ = collect([tmp_path / "short", comparison / "paraaegis-feedback--iid--seed0"])
    assert "plain averaging" not in headline(runs)
    assert "3 clients, 1 round<" in page(runs[:1], [])


def test_a_time_beside_other_work_is_marked_and_compared_with_nothing(comparison, tmp_path):
    shutil.copytree(comparison, tmp_path / "copy")
    for result in (tmp_path / "copy").glob("*/result.json"):
        content = json.loads(result.read_text())
        content["machine"]["shared"] = "two cells"
        result.write_text(json.dumps(content))
    runs, _ = collect([tmp_path / "copy"])
    assert "times its time" not in headline(runs)
    assert "†" in page(runs, [])
    front = figures(runs)["Accuracy against time"]["data"][0]
    assert front["x"] == []


def test_runs_that_differ_in_their_seed_alone_are_taken_together(comparison, tmp_path):
    shutil.copytree(comparison, tmp_path / "copy")
    another_share, another_ratio = ("min_samples", "7"), ("ratio", "0.2")
    for method, seed, accuracy, (key, value) in [
        ("fedavg", 1, 0.8, another_share),  # as the seed shares the data out
        ("fedavg", 2, 0.9, another_share),
        ("paraaegis-static", 1, 0.5, another_ratio),
    ]:
        cell = tmp_path / "copy" / f"{method}--iid--seed{seed}"
        shutil.copytree(comparison / f"{method}--iid--seed0", cell)
        config = re.sub(r"(?m)^seed = .*$", f"seed = {seed}", (cell / "config.toml").read_text())
        (cell / "config.toml").write_text(re.sub(rf"(?m)^{key} = .*$", f"{key} = {value}", config))
        result = json.loads((cell / "result.json").read_text())
        (cell / "result.json").write_text(json.dumps(result | {"metrics": {"accuracy": accuracy}}))
    first = tmp_path / "copy" / "fedavg--iid--seed0" / "result.json"
    first.write_text(json.dumps(json.loads(first.read_text()) | {"metrics": {"accuracy": 0.7}}))
    runs, problems = collect([tmp_path / "copy"])
    assert problems == []
    names, rows = over_seeds(runs)
    assert rows == [["fedavg", "3", "80.00", "10.00", "70.00", "90.00"]]
    assert "| fedavg | 3 | 80.00 | 10.00 | 70.00 | 90.00 |" in markdown(runs)
    assert "accuracy, %: mean" in names
    assert "accuracy, %: mean" in page(runs, [])
    assert "accuracy, %: mean" not in page(*collect([comparison]))


def test_a_run_is_marked_by_its_ratio(comparison):
    marks = {run.result.method: run.mark for run in collect([comparison])[0]}
    assert marks == {"fedavg": "", "paraaegis-static": "10%", "paraaegis-feedback": "10%"}


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ("paraaegis-static-10--iid--seed0", "10%"),
        ("paraaegis-static-10-0.95--iid--seed0", "10%"),
        ("paraaegis-static-10-clip0_1--iid--seed0", "10% clip0_1"),
        ("half--iid--seed0", "half"),
        ("paraaegis-static-488a5013", "10%"),  # a run on its own
    ],
)
def test_a_mark_says_what_a_rows_name_says_beside_the_ratio(comparison, row, expected):
    run = next(run for run in collect([comparison])[0] if run.result.method == "paraaegis-static")
    assert replace(run, name=row, label=row).mark == expected


def test_what_runs_have_in_common_is_shown_once(comparison):
    shown = page(*collect([comparison]))
    assert shown.count("federation.rounds = 2") == 1
    assert shown.count("protect.method = ") == 3


@pytest.mark.parametrize("missing", ["nowhere", "empty"])
def test_folders_without_a_run_are_refused(tmp_path, missing):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ParaAegisError, match=r"not a folder|no run in these folders"):
        collect([tmp_path / missing])


def test_the_page_is_whole_and_asks_nothing_of_a_network(comparison):
    shown = page(*collect([comparison]))
    assert not re.search(r"\{\{[A-Z]+\}\}", shown)
    ours = re.sub(r"<script>/\*\*.*?</script>", "", shown, flags=re.DOTALL)
    assert not re.search(r"""(?:src|href)\s*=\s*["'](?:https?:)?//""", ours)
    assert "@import" not in ours
    for method in METHODS:
        assert method in shown


def test_every_guarantee_on_the_page_names_its_adversary_and_unit(comparison):
    shown = page(*collect([comparison]))
    figures_shown = re.findall(r"<td>ε = [^<]*</td>", shown)
    assert {re.search(r"unit: (\w+)", figure)[1] for figure in figures_shown} == {"client", "record"}
    assert all("δ = " in figure for figure in figures_shown)
    assert "fellow clients" in shown


def test_the_figures_hold_the_runs_own_numbers(comparison):
    runs, _ = collect([comparison])
    drawn = figures(runs)
    by_round = {series["name"]: series["y"] for series in drawn["Accuracy by round"]["data"]}
    for run in runs:
        assert by_round[run.label] == [100 * line.metrics["accuracy"] for line in run.records]
    agreement = {series["name"] for series in drawn["Agreement of the votes"]["data"]}
    assert agreement == {run.label for run in runs if run.result.method != "fedavg"}
    json.dumps(list(drawn.values()))


def test_runs_on_different_data_have_figures_of_their_own(comparison, tmp_path):
    assert "Accuracy against time" in figures(collect([comparison])[0])
    shutil.copytree(comparison, tmp_path / "copy")
    config = tmp_path / "copy" / "fedavg--iid--seed0" / "config.toml"
    built_in = config.read_text().replace('learner = "passed to federate"', "")
    config.write_text(built_in + '[data]\nsplit = "dirichlet"\n')
    runs, _ = collect([tmp_path / "copy"])
    drawn = figures(runs)
    for split in ("own", "dirichlet-0.5"):
        for cost in ("time", "bytes"):
            _, *points = drawn[f"Accuracy against {cost}, {split}"]["data"]
            assert [point["name"] for point in points] == [run.label for run in runs if run.split == split]


def test_the_front_holds_what_nothing_beats_in_both():
    assert pareto([(3, 5), (1, 2), (2, 1), (2, 4), (4, 5), (5, float("nan"))], "accuracy") == [(1, 2), (2, 4), (3, 5)]


def test_the_headline_compares_the_best_protected_method_with_plain_averaging(comparison):
    text = headline(collect([comparison])[0])
    assert "plain averaging" in text
    assert text.endswith("times its time.")


def test_the_headline_names_the_method_of_a_run_whose_label_does_not(comparison, tmp_path):
    shutil.copytree(comparison / "paraaegis-feedback--iid--seed0", tmp_path / "25")
    shutil.copytree(comparison / "paraaegis-feedback--iid--seed0", tmp_path / "26")
    assert headline(collect([tmp_path])[0]).startswith("paraaegis-feedback (25) reached the highest accuracy")


def test_what_a_run_is_called_cannot_break_the_page(comparison, tmp_path):
    name = "<script>alert(1)<"
    shutil.copytree(comparison / "fedavg--iid--seed0", tmp_path / name.replace("/", ""))
    shown = page(*collect([tmp_path]))
    assert "<script>alert(1)" not in shown
    assert Path(tmp_path).exists()


def test_names_of_points_that_lie_close_do_not_cover_each_other(tmp_path):
    def run(index):
        method = SimpleNamespace(method="paraaegis-static")
        return SimpleNamespace(
            result=method, mark=f"{index}% × 0.95", metric="accuracy", value=80 + index / 4, shared=False
        )

    figure = Figure(figsize=(8, 4), dpi=130, layout="constrained")
    panels = figure.subplots(1, 2, squeeze=False)
    for panel in panels.flat:
        draw(panel, [run(index) for index in range(12)], [100 + index for index in range(12)], "seconds")
    finish(figure, panels, tmp_path / "plot.png", "")
    for panel in panels.flat:
        notes = [child for child in panel.get_children() if isinstance(child, Annotation)]
        boxes = [Text.get_window_extent(note) for note in notes]
        assert len(boxes) == 12
        assert not any(box.count_overlaps(boxes[:place]) for place, box in enumerate(boxes))
        assert all(panel.bbox.contains(*corner) for box in boxes for corner in (box.min, box.max))
