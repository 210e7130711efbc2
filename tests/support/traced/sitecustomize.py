"""Writes down every file that a process of a trial opens, for tests that ask what a server reads.

Python imports this module at its start from any folder of PYTHONPATH.
"""

import os
import sys

_log, _mark = os.environ.get("TRACED_INTO"), os.environ.get("PARAAEGIS_TRIAL", "")

if _log and _mark:
    _name = _mark.rpartition(":")[2]
    _file = os.open(f"{_log}/{_name}.opened", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def _note(event, arguments):
        if event == "open":
            os.write(_file, f"{arguments[0]}\n".encode(errors="replace"))

    sys.addaudithook(_note)
