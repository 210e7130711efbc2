"""The command line. Commands import what they use when they run, so that --help is quick."""

from __future__ import annotations

import sys

from paraaegis.errors import ParaAegisError


def main() -> None:
    """Run the command line; an error of ours is one clear line, never a traceback."""
    from paraaegis.cli.app import app

    try:
        app(prog_name="paraaegis")
    except ParaAegisError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        sys.exit(2)
    except KeyboardInterrupt:
        print("stopped; the same command goes on from the last checkpoint", file=sys.stderr)  # noqa: T201
        sys.exit(130)
