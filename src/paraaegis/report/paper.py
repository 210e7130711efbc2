"""The paper's figures, for runs that reproduce its experiments."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from typing import Any

from paraaegis.methods import REFERENCE
from paraaegis.report.collect import Run


def paper_accuracy(run: Run) -> float | None:
    """The paper's accuracy, in percent, if this run reproduces one of its cells."""
    accuracy = _table1(run, "accuracy")
    if accuracy is not None or not _is_papers(run):
        return accuracy
    config, tables = run.config, _tables()
    ablations = {
        "strategies": config.federation.rounds == tables["strategies"]["rounds"],
        "clipping": run.row == f"{config.privacy.clip:g}",
        "clients": run.row == str(config.federation.clients),
    }
    for name, applies in ablations.items():
        if applies and run.row in tables[name]["accuracy"]:
            return float(tables[name]["accuracy"][run.row])
    return None


def paper_overhead(run: Run) -> float | None:
    """The paper's time for this cell over that of its FedAvg."""
    seconds, plain = _table1(run, "seconds"), _table1(run, "seconds", REFERENCE)
    return None if seconds is None or plain is None else seconds / plain


def _table1(run: Run, table: str, row: str = "") -> float | None:
    tables, federation = _tables(), run.config.federation
    figures = tables[table].get(row or run.row)
    if figures is None or run.split not in tables["splits"] or not _is_papers(run):
        return None
    if (federation.clients, federation.rounds) != (10, 50):
        return None
    return float(figures[tables["splits"].index(run.split)])


def _is_papers(run: Run) -> bool:
    return (run.config.data.name, run.config.model.name) == ("imagenette", "resnet18")


@cache
def _tables() -> dict[str, Any]:
    return tomllib.loads((files("paraaegis.report") / "paper.toml").read_text(encoding="utf-8"))
