"""A preset file that is wrong is refused in the words of configurations: the key, what is allowed, what it is."""

import pytest

from paraaegis.comparisons.preset import read_preset
from paraaegis.errors import ConfigError

WHOLE = 'title = "t"\nrows = [{label = "a"}]\nsplits = {iid = {}}\n'


@pytest.mark.parametrize(
    ("content", "refusal"),
    [
        ('title = "t"', "`rows` is missing; a preset needs title, rows and splits"),
        (WHOLE.replace('label = "a"', ""), "`rows[0].label` is missing; a row needs label"),
        (WHOLE.replace("[{", "3 # ["), "rows must be a list of tables, got 3"),
        (WHOLE.replace("iid = {}", "iid = 3"), "splits.iid must be a table, got 3"),
        (WHOLE + 'seeds = ["a"]', "seeds[0] must be a whole number, got 'a'"),
        (WHOLE + "seeds = []", "seeds must be a list such as [0, 1], got []"),
        (WHOLE.replace('"a"', '"a", split = []'), "unknown key 'rows[0].split' (did you mean 'splits'?)"),
        (WHOLE + "seed = 1", "unknown key 'seed' (did you mean 'seeds'?)"),
        ("title = t", "is not valid TOML"),
    ],
)
def test_what_is_wrong_in_a_preset_is_named(tmp_path, content, refusal):
    path = tmp_path / "own.toml"
    path.write_text(content)
    with pytest.raises(ConfigError) as refused:
        read_preset(str(path))
    assert str(refused.value).startswith(f"preset {path}")
    assert refusal in str(refused.value)
