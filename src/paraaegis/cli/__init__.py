"""The command line. Commands import what they use when they run, so that --help is quick."""

from __future__ import annotations

import errno
import logging
import sys
from typing import NoReturn

from paraaegis.errors import LearnerError, ParaAegisError

INTERRUPTED = 130


def main() -> None:
    """Run the command line; an error is printed as one line, after the traceback of a learner that failed."""
    import click

    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    for name in ("torch", "matplotlib"):  # otherwise they log messages of their own, after Ctrl-C and about fonts
        logging.getLogger(name).setLevel(logging.WARNING)
    try:
        from paraaegis.cli.app import app

        # In standalone mode, typer would handle our errors and Ctrl-C itself.
        code = app(prog_name="paraaegis", standalone_mode=False)
    except LearnerError as error:
        _end(f"{_own_traceback(error)}error: {error}", 2)
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


def _own_traceback(error: BaseException) -> str:
    """Where in their own code a learner's error was raised; empty if it was not raised there."""
    import traceback
    from pathlib import Path

    while error.__cause__ is not None:
        error = error.__cause__
    ours = str(Path(__file__).parents[1])
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(ours)]
    return "".join(traceback.format_list(frames))


def _resumes() -> bool:
    return sys.argv[1:2] in (["run"], ["compare"], ["federation"])


def _end(text: str, code: int) -> NoReturn:
    sys.stderr.write(f"{text}\n")
    sys.exit(code)
