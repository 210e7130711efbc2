"""A preset is a grid of rows, splits and seeds, and is refused where it would make a false table."""

import pytest

from paraaegis.comparisons.preset import cells_of, cells_of_files, only, preset_names, read_preset
from paraaegis.errors import ConfigError
from paraaegis.methods import METHODS
from small_preset import PRESET


def test_a_preset_is_a_grid_of_rows_splits_and_seeds(preset):
    cells = cells_of(read_preset(str(preset)))
    assert [(cell.label, cell.split) for cell in cells] == [
        ("fedavg", "iid"), ("fedavg", "dirichlet-0.5"), ("static 20%", "iid"),
    ]  # fmt: skip
    assert cells[2].config.protect.ratio == 0.2
    assert cells[1].config.data.alpha == 0.5


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
    with pytest.raises(ConfigError, match=r"small\.toml: seeds must be a list such as \[0, 1\], got \[\]"):
        read_preset(str(path))
    path.write_text(PRESET.replace("protect.ratio", "protect.ration"))
    with pytest.raises(ConfigError, match=r"row 'static 20%' in split 'iid': unknown key 'protect\.ration'"):
        cells_of(read_preset(str(path)))
    with pytest.raises(ConfigError, match="did you mean 'quick'"):
        read_preset("qick")


def test_shipped_presets_are_the_papers_experiments():
    assert preset_names() == [
        "beyond-table1",
        "conclusions",
        "overhead",
        "overhead-rlwe",
        "paper-clients",
        "paper-clipping",
        "paper-strategies",
        "paper-table1",
        "quick",
        "records",
        "records-digits",
        "rlwe",
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


def test_configurations_of_one_name_are_refused(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x.toml").write_text("")
    with pytest.raises(ConfigError, match="would share the folder"):
        cells_of_files([tmp_path / "a" / "x.toml", tmp_path / "b" / "x.toml"])


def test_a_preset_that_is_no_text_is_refused_by_name(tmp_path):
    (tmp_path / "odd.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"preset .*odd\.toml"):
        read_preset(str(tmp_path / "odd.toml"))
