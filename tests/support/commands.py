"""`paraaegis` in this process, and a quick run on digits."""

import sys
from pathlib import Path

import pytest

from paraaegis.cli import main

ROOT = Path(__file__).parents[2]
DIGITS = str(ROOT / "configs" / "digits.toml")
COMMAND = str(Path(sys.executable).with_name("paraaegis"))
QUICK = ["federation.clients=3", "federation.rounds=3", "model.name=mlp", "train.epochs=1"]


def words(*settings):
    return [word for setting in settings for word in ("--set", setting)]


def call(monkeypatch, capsys, *arguments):
    """The command in this process: its exit code, and what it wrote to either stream."""
    monkeypatch.setattr(sys, "argv", ["paraaegis", *map(str, arguments)])
    with pytest.raises(SystemExit) as stopped:
        main()
    told = capsys.readouterr()
    return stopped.value.code or 0, told.out, told.err
