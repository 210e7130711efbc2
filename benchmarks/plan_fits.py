"""Run plans that claim to fit a time limit, and check that they do.

    python benchmarks/plan_fits.py

Uses three time limits for a run on the built-in data: 1.5, 2 and 3 times the estimate for the default ratio. Each plan
is made with a pilot, written and run. Exits with status 1 if a run takes longer than its limit.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

METHODS = ("paraaegis-feedback", "paraaegis-static")
SETTINGS = ("federation.rounds=12", "privacy.noise=seeded", "privacy.calibration=paper")
COMMON = (*(part for setting in SETTINGS for part in ("--set", setting)), "--pilot", "--json")


def paraaegis(*arguments: str) -> dict:
    """Run one of our commands; return its JSON."""
    command = [sys.executable, "-m", "paraaegis", *arguments]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)  # noqa: S603
    return json.loads(done.stdout)


def main() -> int:
    """Print the limit, the planned time and the time taken; return 1 if a run was late."""
    late = 0
    print(f"{'method':20} {'allowed, s':>10} {'ratio':>7} {'planned, s':>10} {'taken, s':>10}")
    with tempfile.TemporaryDirectory() as folder:
        for method in METHODS:
            usual = paraaegis("plan", "--method", method, *COMMON)["choice"]["estimate"]["seconds"]
            for number, share in enumerate((1.5, 2.0, 3.0)):
                plan, allowed = Path(folder) / f"{method}-{number}.toml", share * usual
                limits = ("--method", method, "--seconds", str(allowed), "--write", str(plan))
                answer = paraaegis("plan", *limits, *COMMON)
                taken = paraaegis("run", str(plan), "--out", str(plan.with_suffix("")), "--json")["seconds"]
                choice, late = answer["choice"], late + (answer["fits"] and taken > allowed)
                fits = "" if answer["fits"] else "  planned not to fit"
                print(
                    f"{method:20} {allowed:10.1f} {100 * choice['ratio']:6.1f}% {choice['estimate']['seconds']:10.1f} "
                    f"{taken:10.1f}{fits}{'  TOO LATE' if answer['fits'] and taken > allowed else ''}",
                    flush=True,
                )
    return int(late > 0)


if __name__ == "__main__":
    sys.exit(main())
