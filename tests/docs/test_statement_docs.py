"""The example in docs/statement.md is what the command prints."""

import re
from pathlib import Path

from typer.testing import CliRunner

from paraaegis.cli.app import app

DOCS = Path(__file__).parents[2] / "docs" / "statement.md"


def test_the_example_is_real_output(tmp_path):
    text = DOCS.read_text(encoding="utf-8")
    (config,) = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    (example,) = re.findall(r"```markdown\n(.*?)```", text, re.DOTALL)
    (tmp_path / "study.toml").write_text(config)
    printed = CliRunner().invoke(app, ["statement", str(tmp_path / "study.toml")]).output
    assert len(example.splitlines()) > 20
    assert [line for line in example.splitlines() if line not in printed.splitlines()] == []
