"""docs/configuration.md says what the schema does."""

import re
from pathlib import Path

from paraaegis.comparisons.preset import cells_of, read_preset
from paraaegis.config import load_config
from paraaegis.config.listing import all_keys

DOCS = Path(__file__).parents[2] / "docs" / "configuration.md"


def test_every_key_is_documented_as_it_is():
    rows = [line for line in DOCS.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    assert rows == [f"| `{key.name}` | `{key.default}` | {key.allowed} | {key.meaning} |" for key in all_keys()]
    assert len(rows) > 40


def test_the_documented_files_are_a_configuration_and_a_preset(tmp_path):
    one, grid = re.findall(r"```toml\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "one.toml").write_text(one)
    assert load_config(tmp_path / "one.toml").protect.ratio == 0.01
    (tmp_path / "grid.toml").write_text(grid)
    cells = cells_of(read_preset(str(tmp_path / "grid.toml")))
    assert [(cell.label, cell.split, cell.seed) for cell in cells] == [
        ("static-10", "iid", 0), ("static-10", "iid", 1), ("static-10", "skewed", 0), ("static-10", "skewed", 1),
        ("feedback-1", "iid", 0)]  # fmt: skip
