"""A comparison goes on where it stopped, and leaves alone what is not its own."""

import json
import shutil
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from paraaegis.comparisons.compare import compare
from paraaegis.comparisons.preset import cells_of, read_preset
from paraaegis.comparisons.table import markdown
from paraaegis.errors import ConfigError, CryptoError, RunError
from small_preset import silent


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


def test_a_damaged_cell_says_how_to_redo_it_alone(preset, tmp_path):
    cells, out = cells_of(read_preset(str(preset))), tmp_path / "out"
    compare("small", cells, out, False, silent)
    result = out / cells[1].folder / "result.json"
    whole = result.read_bytes()
    result.write_bytes(whole[:-20])
    one = result.parent
    with pytest.raises(RunError, match=f"deletes and repeats all cells; to repeat only this one, remove {one}"):
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


def test_a_file_is_no_comparisons_folder(preset):
    with pytest.raises(RunError, match="is a file and cannot be a comparison's folder"):
        compare("small", cells_of(read_preset(str(preset))), preset, False, silent)


def test_a_damaged_table_is_made_anew_from_its_cells(preset, tmp_path):
    cells = cells_of(read_preset(str(preset)))[:1]
    first = compare("small", cells, tmp_path / "out", False, silent)
    (tmp_path / "out" / "table.json").write_text("{")
    assert compare("small", cells, tmp_path / "out", False, silent) == first


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


@pytest.mark.parametrize("setting", ["privacy.epsilon=inf", "federation.clients=130"])
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
