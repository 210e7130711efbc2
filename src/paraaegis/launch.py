"""Where a configuration is run: in this process, or as a federation of several processes on this machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from paraaegis.config import Config
from paraaegis.errors import ConfigError
from paraaegis.runs.result import Result
from paraaegis.runs.run import OnRecord, run_here

Runner: TypeAlias = Callable[[Config, Path, bool, OnRecord, bool], Result]


def run(
    config: Config, out: Path, fresh: bool = False, on_record: OnRecord = lambda _: None, extend: bool = False
) -> Result:
    """Run a configuration on its data set, or continue it, in the folder `out`.

    With `extend`, add rounds to a finished run.
    """
    return RUNNERS[config.engine.name](config, out, fresh, on_record, extend)


def _run_on_flower(config: Config, out: Path, fresh: bool, on_record: OnRecord, extend: bool) -> Result:
    if extend:
        raise ConfigError(
            "--extend adds rounds to runs in one process (engine.name = 'local'); across a network, clients delete "
            "their states and keys when a run ends, so start a new run with more rounds"
        )
    from paraaegis.deploy.local_federation import up

    return up(config, out, fresh, on_record)


RUNNERS: dict[str, Runner] = {"local": run_here, "flower": _run_on_flower}  # by engine.name
