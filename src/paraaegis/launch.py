"""Where a configuration is run: in this process, or as a federation of several processes on this machine."""

from __future__ import annotations

from pathlib import Path

from paraaegis.config import Config
from paraaegis.runs.result import Result
from paraaegis.runs.run import OnRecord, run_here


def run(config: Config, out: Path, fresh: bool = False, on_record: OnRecord = lambda _: None) -> Result:
    """Run a configuration on its data set, or continue it, in the folder `out`."""
    if config.engine.name == "flower":
        from paraaegis.deploy.local_federation import up

        return up(config, out, fresh, on_record)
    return run_here(config, out, fresh, on_record)
