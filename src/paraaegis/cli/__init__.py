"""The command line. Commands import what they use when they run, so that --help is quick."""

from __future__ import annotations

import errno
import logging
import sys
from typing import NoReturn

from paraaegis.errors import ParaAegisError

INTERRUPTED = 130


def main() -> None:
    """Run the command line; an error is printed as one line, without a traceback."""
    import click

    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    for name in ("torch", "matplotlib"):  # otherwise they log messages of their own, after Ctrl-C and about fonts
        logging.getLogger(name).setLevel(logging.WARNING)
    try:
        from paraaegis.cli.app import app

        # In standalone mode, typer would handle our errors and Ctrl-C itself.
        code = app(prog_name="paraaegis", standalone_mode=False)
    except ParaAegisError as error:
        _end(f"error: {error}", 2)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except OSError as error:
        full = error.errno == errno.ENOSPC and _resumes()
        hint = "; free some space, then run the same command again to continue" if full else ""
        _end(f"error: {error.filename or 'the system'}: {error.strerror or error}{hint}", 2)
    except KeyboardInterrupt:
        code = INTERRUPTED
    if code == INTERRUPTED:
        hint = "; the same command, without --fresh, continues from the last checkpoint" if _resumes() else ""
        _end(f"stopped{hint}", INTERRUPTED)
    sys.exit(code if isinstance(code, int) else 0)


def _resumes() -> bool:
    return sys.argv[1:2] in (["run"], ["compare"], ["federation"])


def _end(text: str, code: int) -> NoReturn:
    sys.stderr.write(f"{text}\n")
    sys.exit(code)
