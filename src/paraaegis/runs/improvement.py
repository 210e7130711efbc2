"""Which round was the best so far, and whether a run should end because the model no longer improves."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection

from paraaegis import metrics
from paraaegis.config import Config
from paraaegis.plural import plural
from paraaegis.protocol.records import RoundRecord
from paraaegis.types import Vector

_log = logging.getLogger(__name__)


class Improvement:
    """Follows `train.stop_metric` from record to record.

    `weights` are the model of the best round, where this process has it. `stopped` says why the run ends early: the
    round that is under way when the metrics of the last one arrive is still completed.
    """

    def __init__(self, config: Config) -> None:
        self.best_round, self.stopped = 0, ""
        self.weights: Vector | None = None
        self._metric, self._wanted, self._patience = "", config.train.stop_metric, config.train.stop_after
        self._rounds = config.federation.rounds
        self._best, self._waited = math.nan, 0

    def take(self, record: RoundRecord, weights: Vector | None = None) -> None:
        """Take a round's record and the model after that round; records come in order."""
        if not record.metrics:
            if self._patience and record.round == 1:
                _log.warning("round 1 reported no metrics; train.stop_after has no effect until one does")
            return
        self._metric = self._metric or _chosen(self._wanted, record.metrics)
        value = record.metrics.get(self._metric, math.nan)
        if not math.isnan(value) and (not self.best_round or metrics.better(self._metric, value, self._best)):
            self.best_round, self._best, self._waited, self.weights = record.round, value, 0, weights
        elif self.best_round and self._metric in record.metrics:
            self._waited += 1
        if 0 < self._patience <= self._waited and record.round + 1 < self._rounds:
            self.stopped = self.stopped or self._why()

    def _why(self) -> str:
        best = f"{self._metric} {metrics.text(self._metric, metrics.scaled(self._metric, self._best))}"
        return (
            f"{plural(self._waited, 'round')} without improvement (train.stop_after); the best was {best}, after round "
            f"{self.best_round}; {plural(self._rounds, 'round')} were planned"
        )


def _chosen(wanted: str, reported: Collection[str]) -> str:
    """The wanted metric, or the one shown. Refusing it now would lose the noise of the rounds already done."""
    shown = metrics.choose(None, reported)
    if wanted and wanted not in reported:
        _log.warning(
            "train.stop_metric is %r, which was not reported; using %s instead (reported: %s)",
            wanted,
            shown,
            ", ".join(reported),
        )
        return shown
    return wanted or shown
