"""What a comparison's table says, and how."""

import json
from dataclasses import replace
from statistics import fmean, stdev

import pytest

from paraaegis.cli.compare import titled
from paraaegis.comparisons.compare import compare
from paraaegis.comparisons.preset import cells_of, only, read_preset
from paraaegis.comparisons.table import markdown
from paraaegis.errors import RunError
from small_preset import PRESET, silent


@pytest.mark.parametrize(("settings", "title"), [
    (["federation.rounds=3", "seed=1"], "12 rounds (federation.rounds=3, seed=1)"),
    (["data.folder=somewhere", "engine.workers=2"], "12 rounds"),
])  # fmt: skip
def test_a_title_tells_the_settings_that_change_results(settings, title):
    assert titled("12 rounds", settings) == title


def test_efficiency_and_bytes_stand_in_the_markdown(preset, tmp_path):
    table = compare("small", cells_of(read_preset(str(preset)))[:1], tmp_path / "out", False, silent)
    assert f"| {table.rows[0].bytes_up / 1e6:.2f} |" in markdown(table)


def test_a_cell_whose_evaluator_was_away_at_the_end_has_no_accuracy(preset, tmp_path):
    cells = cells_of(read_preset(str(preset)))[:1]
    compare("small", cells, tmp_path / "out", False, silent)
    path = tmp_path / "out" / cells[0].folder / "result.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"metrics": {}}))
    assert "| fedavg |  | " in markdown(compare("small", cells, tmp_path / "out", False, silent))
    with pytest.raises(RunError, match="holds the comparison 'small'"):  # its table can be read
        compare("other", cells, tmp_path / "out", False, silent)


def test_seconds_of_a_shared_machine_are_marked(preset, tmp_path):
    cells = cells_of(read_preset(str(preset)))[:1]
    compare("small", cells, tmp_path / "out", False, silent)
    path = tmp_path / "out" / cells[0].folder / "result.json"
    result = json.loads(path.read_text())
    result["machine"]["shared"] = "two cells"
    path.write_text(json.dumps(result))
    text = markdown(compare("small", cells, tmp_path / "out", False, silent))
    assert f"{result['seconds']:.1f}† |" in text
    assert "†: the machine had other work" in text


def test_several_seeds_are_one_row_with_mean_and_deviation(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(PRESET.replace('label = "fedavg"', 'label = "fedavg"\nseeds = [0, 1, 2]\nsplits = ["iid"]'))
    cells = cells_of(read_preset(str(path)))
    assert [(cell.label, cell.seed) for cell in only(cells, seeds=[1])] == [("fedavg", 1)]
    table = compare("small", cells, tmp_path / "out", False, silent)
    accuracies = [row.value for row in table.rows if row.label == "fedavg"]
    assert len(accuracies) == 3
    assert len(set(accuracies)) > 1
    lines = markdown(table).splitlines()
    assert [line.split("|")[1].strip() for line in lines[2:] if line.startswith("| ")] == [
        "method", "fedavg", "static 20%",
    ]  # fmt: skip
    assert f"| {fmean(accuracies):.2f} ± {stdev(accuracies):.2f} % |" in lines[4]
    assert "±" not in lines[5]
    assert "standard deviation over seeds" in lines[-1]


def test_no_label_breaks_the_table(preset, tmp_path):
    cell = replace(cells_of(read_preset(str(preset)))[0], label="a|<b>")
    table = compare("small", [cell], tmp_path / "out", False, silent)
    assert "| a\\|&lt;b&gt; | " in markdown(table)
