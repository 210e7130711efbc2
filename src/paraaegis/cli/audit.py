"""`paraaegis audit`: attack our own noise and compare the result with the claim."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from paraaegis.cli.options import Json, Settings, chosen_config, print_json

if TYPE_CHECKING:
    from paraaegis.audit.games import Audit
    from paraaegis.audit.records import RecordAudit


def audit(
    config: Annotated[
        Path | None,
        typer.Argument(help="A TOML file. Without it and --set, every noised method and record-level DP are audited."),
    ] = None,
    settings: Settings = None,
    trials: Annotated[
        int,
        typer.Option(
            min=500, help="Games with the canary; as many are played without it. Unit record: ten canaries each."
        ),
    ] = 2_000,
    rounds: Annotated[
        int, typer.Option(min=0, max=1000, help="Rounds per game. 0: two, or three where noise varies by round.")
    ] = 0,
    as_json: Json = False,
) -> None:
    """Try to detect a canary (made to be recognised) through the noise, and compare with the claim.

    A canary is an update or, with privacy.unit = "record", a record in a real training.

    Then measure clipping, noise, repeated noise and, for records, sampling.

    The noise is secret, as in deployment, so no two audits give the same figures.

    Auditing all noised methods takes several minutes, less with fewer --trials.

    Exits with status 1 if anything contradicts a claim.
    """
    from paraaegis.audit import games, records
    from paraaegis.audit.setup import check_finite
    from paraaegis.cli.display import ticking
    from paraaegis.runs.check import check_method

    everything = games.everything() | records.everything()
    configs = everything if config is None and not settings else {"": chosen_config(config, settings)}
    for one in configs.values():
        check_finite(one)
        check_method(one)
        if one.privacy.unit != "record":
            games.check_noised(one, rounds)
    audits: list[Audit | RecordAudit] = []
    for given, one in configs.items():
        of_records = one.privacy.unit == "record"
        name = given or (records.LABEL if of_records else one.protect.method)
        play, games_of_a_trial = (records.audit, records.PER_TRIAL) if of_records else (games.audit, 2)
        with ticking(f"auditing {name}", trials * games_of_a_trial) as tick:
            audits.append(play(one, name, trials, rounds, tick))
    if as_json:
        print_json(audits)
    else:
        sys.stdout.write(_text(audits) + "\n")
    if not all(one.passed for one in audits):
        sys.exit(1)


def _text(audits: list[Audit | RecordAudit]) -> str:
    """All reports, and a note for each kind of audit."""
    from paraaegis.audit.games import Audit
    from paraaegis.cli import audit_text, record_audit_text

    notes = {audit_text.NOTE if isinstance(one, Audit) else record_audit_text.NOTE: None for one in audits}
    reports = [
        audit_text.report(one) if isinstance(one, Audit) else record_audit_text.record_report(one) for one in audits
    ]
    return "\n\n".join([*reports, *notes])
