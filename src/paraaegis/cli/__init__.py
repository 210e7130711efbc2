"""The command line. Commands import what they use when they run, so that --help is quick."""

from __future__ import annotations

import errno
import logging
import sys
from typing import NoReturn

from paraaegis.errors import ParaAegisError

INTERRUPTED = 130


def main() -> None:
    """Run the command line; an error of ours is one clear line, never a traceback."""
    import click

    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    for name in ("torch", "matplotlib"):  # which else have words of their own, after Ctrl-C and about fonts
        logging.getLogger(name).setLevel(logging.WARNING)
    try:
        from paraaegis.cli.app import app

        # Not standalone: there an error of ours and Ctrl-C would end in typer's words instead of ours.
        code = app(prog_name="paraaegis", standalone_mode=False)
    except ParaAegisError as error:
        _end(f"error: {error}", 2)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except OSError as error:
        room = "; the same command goes on once there is room" if error.errno == errno.ENOSPC and _resumes() else ""
        _end(f"error: {error.filename or 'the system'}: {error.strerror or error}{room}", 2)
    except KeyboardInterrupt:
        code = INTERRUPTED
    if code == INTERRUPTED:
        goes_on = "; the same command, without --fresh, goes on from the last checkpoint" if _resumes() else ""
        _end(f"stopped{goes_on}", INTERRUPTED)
    sys.exit(code if isinstance(code, int) else 0)


def _resumes() -> bool:
    return sys.argv[1:2] in (["run"], ["compare"], ["federation"])


def _end(text: str, code: int) -> NoReturn:
    sys.stderr.write(f"{text}\n")
    sys.exit(code)
