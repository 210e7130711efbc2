"""The comparison: presets, resumption, tables, and every combination through the configuration alone."""

import json
import shutil
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import fmean, stdev

import msgspec
import pytest

from paraaegis.cli.compare import titled
from paraaegis.comparisons.compare import compare
from paraaegis.comparisons.preset import cells_of, cells_of_files, only, preset_names, read_preset
from paraaegis.comparisons.table import markdown
from paraaegis.config import make_config
from paraaegis.errors import ConfigError, CryptoError, RunError
from paraaegis.launch import run
from paraaegis.methods import METHODS

PRESET = """
title = "small"
[config.federation]
clients = 3
rounds = 2
[config.train]
epochs = 1
[config.model]
name = "mlp"
[splits.iid]
"data.split" = "iid"
[splits."dirichlet-0.5"]
"data.split" = "dirichlet"
"data.alpha" = 0.5
[[rows]]
label = "fedavg"
set = { "protect.method" = "fedavg" }
[[rows]]
label = "static 20%"
splits = ["iid"]
set = { "protect.method" = "paraaegis-static", "protect.ratio" = 0.2 }
"""


@pytest.fixture
def preset(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(PRESET)
    return path


@contextmanager
def silent(_name, _rounds):
    yield lambda _line: None


def test_a_preset_is_a_grid_of_rows_splits_and_seeds(preset):
    cells = cells_of(read_preset(str(preset)))
    assert [(cell.label, cell.split) for cell in cells] == [
        ("fedavg", "iid"), ("fedavg", "dirichlet-0.5"), ("static 20%", "iid"),
    ]  # fmt: skip
    assert cells[2].config.protect.ratio == 0.2
    assert cells[1].config.data.alpha == 0.5


def test_a_comparison_goes_on_where_it_stopped(preset, tmp_path):
    cells = cells_of(read_preset(str(preset)))
    stopped, ran = [], []

    @contextmanager
    def stop_in_the_second(name, _rounds):
        def show(line):
            if name.startswith("2/") and line.round == 1:
                stopped.append(name)
                raise KeyboardInterrupt

        yield show

    @contextmanager
    def count(name, _rounds):
        yield lambda line: ran.append((name, line.round))

    with pytest.raises(KeyboardInterrupt):
        compare("small", cells, tmp_path / "out", False, stop_in_the_second)
    first = (tmp_path / "out" / cells[0].folder / "rounds.jsonl").read_bytes()
    table = compare("small", cells, tmp_path / "out", False, count)
    assert stopped
    assert not any(name.startswith("1/") for name, _ in ran)
    assert (tmp_path / "out" / cells[0].folder / "rounds.jsonl").read_bytes() == first
    assert len(table.rows) == 3
    whole = compare("small", cells, tmp_path / "whole", False, silent)
    assert [row.value for row in table.rows] == [row.value for row in whole.rows]


def test_the_command_prints_the_papers_table_and_writes_its_files(preset, tmp_path):
    script = Path(sys.executable).with_name("paraaegis")
    command = [script, "compare", "--preset", preset, "--out", tmp_path / "out"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "static 20%" in shown
    assert "efficiency" in shown
    printed = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True).stdout
    rows = json.loads(printed)["rows"]
    wanted = {"method", "label", "split", "seed", "accuracy", "seconds", "efficiency", "bytes_up", "bytes_down"}
    assert all(wanted <= row.keys() for row in rows)
    assert all(row["efficiency"] == pytest.approx(100 * row["accuracy"] / row["seconds"]) for row in rows)
    assert (tmp_path / "out" / "plot.png").read_bytes().startswith(b"\x89PNG")
    assert "| fedavg |" in (tmp_path / "out" / "table.md").read_text()


def test_neither_or_both_of_preset_and_configurations_is_refused(preset):
    script = Path(sys.executable).with_name("paraaegis")
    for extra in ([], ["--preset", preset, preset]):
        done = subprocess.run([script, "compare", *extra], capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert "--preset" in done.stderr


def test_plain_configurations_are_compared_under_their_names(tmp_path):
    for name in ("one", "two"):
        (tmp_path / f"{name}.toml").write_text('[data]\nsplit = "dirichlet"\nalpha = 1.0\n')
    cells = cells_of_files([tmp_path / "one.toml", tmp_path / "two.toml"])
    assert [(cell.label, cell.split) for cell in cells] == [("one", "dirichlet-1"), ("two", "dirichlet-1")]


@pytest.mark.parametrize(("change", "what"), [
    (('set = { "protect.method" = "fedavg" }', 'splits = ["elsewhere"]'), "elsewhere"),
    (('"protect.ratio" = 0.2', '"protect.ratio" = 1.2'), "protect.ratio"),
    (("title", "titel"), "titel"),
    (('label = "static 20%"\nsplits = ["iid"]', 'label = "fedavg"'), "would share the folder"),
])  # fmt: skip
def test_a_broken_preset_is_refused_before_any_run(preset, change, what):
    preset.write_text(PRESET.replace(*change))
    with pytest.raises(ConfigError, match=what):
        cells_of(read_preset(str(preset)))


@pytest.mark.parametrize(("setting", "source"), [
    ("protect.ratio=0.5", "row 'static 20%'"),
    ("data.split=iid", "split 'dirichlet-0.5'"),
])  # fmt: skip
def test_a_setting_that_would_undo_a_row_or_a_split_is_refused(preset, setting, source):
    with pytest.raises(
        ConfigError, match=f"--set {setting} conflicts with {source} of the preset, which sets the same key"
    ):
        cells_of(read_preset(str(preset)), [setting])


def test_a_preset_without_a_seed_or_with_a_wrong_row_is_refused_by_name(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text("seeds = []" + PRESET)
    with pytest.raises(ConfigError, match=r"small\.toml: Expected `array` of length >= 1"):
        read_preset(str(path))
    path.write_text(PRESET.replace("protect.ratio", "protect.ration"))
    with pytest.raises(ConfigError, match=r"row 'static 20%' in split 'iid': unknown key 'protect\.ration'"):
        cells_of(read_preset(str(path)))
    with pytest.raises(ConfigError, match="did you mean 'quick'"):
        read_preset("qick")


def test_a_damaged_cell_says_how_to_redo_it_alone(preset, tmp_path):
    cells, out = cells_of(read_preset(str(preset))), tmp_path / "out"
    compare("small", cells, out, False, silent)
    result = out / cells[1].folder / "result.json"
    whole = result.read_bytes()
    result.write_bytes(whole[:-20])
    with pytest.raises(RunError, match=f"--fresh repeats all cells; to repeat only this one, remove {result.parent}"):
        compare("small", cells, out, False, silent)
    shutil.rmtree(result.parent)
    compare("small", cells, out, False, silent)
    assert json.loads(result.read_bytes())["metrics"] == json.loads(whole)["metrics"]


def test_what_lies_in_a_cells_place_is_not_advised_to_be_removed(preset, tmp_path):
    cells, out = cells_of(read_preset(str(preset))), tmp_path / "out"
    compare("small", cells, out, False, silent)
    shutil.rmtree(out / cells[1].folder)
    (out / cells[1].folder).mkdir()
    (out / cells[1].folder / "thesis.txt").write_text("mine")
    with pytest.raises(RunError, match=r"is not a run's folder: it holds thesis\.txt; choose another --out$"):
        compare("small", cells, out, False, silent)


@pytest.mark.parametrize(("settings", "title"), [
    (["federation.rounds=3", "seed=1"], "12 rounds (federation.rounds=3, seed=1)"),
    (["data.folder=somewhere", "engine.workers=2"], "12 rounds"),
])  # fmt: skip
def test_a_title_tells_the_settings_that_change_results(settings, title):
    assert titled("12 rounds", settings) == title


def test_a_file_is_no_comparisons_folder(preset):
    with pytest.raises(RunError, match="is a file and cannot be a comparison's folder"):
        compare("small", cells_of(read_preset(str(preset))), preset, False, silent)


def test_shipped_presets_are_the_papers_experiments():
    assert preset_names() == [
        "beyond-table1",
        "conclusions",
        "overhead",
        "paper-clients",
        "paper-clipping",
        "paper-strategies",
        "paper-table1",
        "quick",
    ]
    table1 = cells_of(read_preset("paper-table1"))
    assert len(table1) == 14 * 3
    first = table1[0].config
    assert (first.federation.clients, first.federation.rounds, first.train.epochs, first.train.batch) == (10, 50, 3, 32)
    assert (first.train.lr, first.privacy.clip, first.privacy.epsilon, first.privacy.delta) == (0.01, 1.0, 1.0, 1e-5)
    assert {cell.config.protect.strategy for cell in cells_of(read_preset("paper-strategies"))} == {
        "max",
        "min",
        "rand",
    }
    assert [cell.config.privacy.clip for cell in cells_of(read_preset("paper-clipping"))] == [0.01, 0.1, 1, 10]
    assert [cell.config.federation.clients for cell in cells_of(read_preset("paper-clients"))] == [5, 10, 25, 50] * 2
    assert {cell.config.protect.method for cell in cells_of(read_preset("quick"))} == set(METHODS)
    known = {cell.folder: cell.config for cell in [*table1, *cells_of(read_preset("beyond-table1"))]}
    brief = {cell.label: cell.config.protect for cell in cells_of(read_preset("overhead"))}
    for cell in table1:
        shown = brief[cell.label]
        assert (shown.method, shown.ratio) == (cell.config.protect.method, cell.config.protect.ratio)
        assert shown.decay == pytest.approx(cell.config.protect.decay**10, 1e-3)
    seeds = cells_of(read_preset("conclusions"))
    plain = [cell for cell in seeds if cell.config.train.server_lr == 1]
    assert (len(plain), len(seeds)) == (4 * 3 * 3, 4 * 3 * 3 + 3 * 3 + 3 + 3)
    assert all(cell.config == known[cell.folder] for cell in plain if cell.seed == 0)  # so that they need not run twice


@pytest.mark.parametrize(("method", "model", "split"), [
    (method, model, split) for method, (model, split) in product(METHODS, [("mlp", "dirichlet"), ("cnn", "iid")])
])  # fmt: skip
def test_every_method_combines_with_every_model_and_split(method, model, split, tmp_path):
    settings = [f"protect.method={method}", f"model.name={model}", f"data.split={split}", "data.alpha=1.0",
                "federation.rounds=1", "federation.clients=5", "train.epochs=1"]  # fmt: skip
    result = run(make_config({}, settings), tmp_path / "run")
    assert 0 <= result.metrics["accuracy"] <= 1


def test_efficiency_and_bytes_stand_in_the_markdown(preset, tmp_path):
    table = compare("small", cells_of(read_preset(str(preset)))[:1], tmp_path / "out", False, silent)
    assert f"| {table.rows[0].bytes_up / 1e6:.2f} |" in markdown(table)


def test_a_part_of_a_preset_can_be_run(preset):
    cells = cells_of(read_preset(str(preset)))
    assert [cell.label for cell in only(cells, ["iid"], [])] == ["fedavg", "static 20%"]
    assert [cell.split for cell in only(cells, [], ["fedavg"])] == ["iid", "dirichlet-0.5"]
    with pytest.raises(ConfigError, match="no row 'fedavgg' in this preset; its rows are fedavg, static 20%"):
        only(cells, [], ["fedavgg"])
    with pytest.raises(ConfigError, match=r"no seed 7 in this preset; its seeds are 0 \("):
        only(cells, seeds=[7])


def test_what_would_make_a_false_table_is_refused(preset, tmp_path):
    chosen = read_preset(str(preset))
    with pytest.raises(ConfigError, match="a preset has its own seeds"):
        cells_of(chosen, ["seed=5"])
    with pytest.raises(ConfigError, match="no cell of this preset has that combination of split, row and seed"):
        only(cells_of(chosen), ["dirichlet-0.5"], ["static 20%"])
    preset.write_text(
        PRESET.replace('label = "static 20%"', 'label = "fedavg%"').replace('"fedavg"\nset', '"fedavg×"\nset')
    )
    with pytest.raises(ConfigError, match=r"'fedavg×' and 'fedavg%' .* would share the folder"):
        cells_of(read_preset(str(preset)))


def test_a_damaged_table_is_made_anew_from_its_cells(preset, tmp_path):
    cells = cells_of(read_preset(str(preset)))[:1]
    first = compare("small", cells, tmp_path / "out", False, silent)
    (tmp_path / "out" / "table.json").write_text("{")
    assert compare("small", cells, tmp_path / "out", False, silent) == first


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


def test_a_foreign_folder_is_left_alone(preset, tmp_path):
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "thesis.txt").write_text("years of work")
    with pytest.raises(RunError, match=r"holds thesis\.txt"):
        compare("small", cells_of(read_preset(str(preset))), tmp_path / "theirs", False, silent)
    assert [path.name for path in (tmp_path / "theirs").iterdir()] == ["thesis.txt"]


def test_another_comparisons_folder_is_left_alone(preset, tmp_path):
    cells = cells_of(read_preset(str(preset)))
    compare("small", cells, tmp_path / "out", False, silent, wanted=cells[:1])
    with pytest.raises(RunError, match="holds the comparison 'small', not 'other'"):
        compare("other", cells, tmp_path / "out", False, silent)


def test_a_part_that_is_run_later_keeps_the_rows_of_the_same_configuration_only(preset, tmp_path):
    cells = cells_of(read_preset(str(preset)))
    compare("small", cells, tmp_path / "out", False, silent, wanted=cells[:1])
    both = compare("small", cells, tmp_path / "out", False, silent, wanted=cells[2:])
    assert [row.label for row in both.rows] == ["fedavg", "static 20%"]
    changed = cells_of(read_preset(str(preset)), ["train.lr=0.01"])
    with pytest.raises(RunError, match=r"train\.lr"):
        compare("small", changed, tmp_path / "out", False, silent, wanted=changed[:1])


def test_configurations_of_one_name_are_refused(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x.toml").write_text("")
    with pytest.raises(ConfigError, match="would share the folder"):
        cells_of_files([tmp_path / "a" / "x.toml", tmp_path / "b" / "x.toml"])


@pytest.mark.parametrize("setting", ["privacy.epsilon=inf", "federation.clients=130", "protect.profile=none"])
def test_a_cell_that_cannot_run_is_found_before_the_first_runs(setting, tmp_path):
    started = []

    @contextmanager
    def note(name, _rounds):
        started.append(name)
        yield lambda _line: None

    with pytest.raises((ConfigError, CryptoError)):
        compare("quick", cells_of(read_preset("quick"), [setting]), tmp_path / "out", False, note)
    assert not started


def test_results_that_were_copied_without_their_lock_are_not_run_again_nor_their_data_read(
    preset, tmp_path, monkeypatch
):
    cells = cells_of(read_preset(str(preset)))[:1]
    compare("small", cells, tmp_path / "out", False, silent)
    (tmp_path / "out" / cells[0].folder / ".lock").unlink()
    monkeypatch.setattr("paraaegis.runs.experiment.torch_experiment", lambda _: pytest.fail("data was read"))
    ran = []

    @contextmanager
    def count(_name, _rounds):
        yield ran.append

    assert len(compare("small", cells, tmp_path / "out", False, count).rows) == 1
    assert not ran


def test_a_cell_that_diverges_does_not_hold_up_the_others(preset, tmp_path):
    cells = cells_of(read_preset(str(preset)))
    train = msgspec.structs.replace(cells[0].config.train, lr=1e30)
    diverging = replace(cells[0], config=msgspec.structs.replace(cells[0].config, train=train))
    table = compare("small", [diverging, *cells[1:]], tmp_path / "out", False, silent)
    assert [row.label for row in table.rows] == ["fedavg", "static 20%"]
    assert list(table.diverged) == [diverging.folder]
    assert f"No result: {diverging.folder} (training of client-" in markdown(table)
    again = compare("small", [diverging, *cells[1:]], tmp_path / "out", False, silent, cells[1:])
    assert again.diverged == table.diverged  # of the cells that were not asked for this time
    with pytest.raises(RunError, match="no cell has a result"):
        compare("small", [diverging], tmp_path / "alone", False, silent)


def test_a_preset_that_is_no_text_is_refused_by_name(tmp_path):
    (tmp_path / "odd.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"preset .*odd\.toml"):
        read_preset(str(tmp_path / "odd.toml"))


def test_no_label_breaks_the_table(preset, tmp_path):
    cell = replace(cells_of(read_preset(str(preset)))[0], label="a|<b>")
    table = compare("small", [cell], tmp_path / "out", False, silent)
    assert "| a\\|&lt;b&gt; | " in markdown(table)
