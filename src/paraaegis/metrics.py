"""Metrics by name: which one a command shows, how its values are written, and which of two values is better."""

from __future__ import annotations

from collections.abc import Iterable

from paraaegis.errors import ConfigError

ACCURACY, LOSS = "accuracy", "loss"
_LOWER = (LOSS, "error", "mae", "mse", "rmse", "perplexity")


def choose(metric: str | None, available: Iterable[str]) -> str:
    """The metric to show: the given one if it was reported; without one accuracy, else the first that is not `loss`.

    Where nothing was reported, nothing can be refused.
    """
    names = list(dict.fromkeys(available))
    if metric is None:
        return ACCURACY if ACCURACY in names or not names else next((name for name in names if name != LOSS), LOSS)
    if names and metric not in names:
        raise ConfigError(
            f"metric must be one that was reported ({', '.join(names)}), got {metric!r}; choose one of them with "
            "--metric, or omit it"
        )
    return metric


def lower_is_better(metric: str) -> bool:
    """Whether it measures an error: its name ends like `loss`, `error`, `rmse` or `perplexity`."""
    return metric.lower().endswith(_LOWER)


def better(metric: str, one: float, other: float) -> bool:
    """Whether a value is better than another; NaN is neither better nor worse."""
    return one < other if lower_is_better(metric) else one > other


def is_percent(metric: str) -> bool:
    """Whether values in [0, 1] are shown as percent: accuracies only."""
    return metric.lower().endswith(ACCURACY)


def scaled(metric: str, value: float) -> float:
    """A reported value on the scale on which it is shown: percent for accuracies."""
    return 100 * value if is_percent(metric) else value


def text(metric: str, shown: float, digits: int = 1) -> str:
    """A scaled value as text: accuracies as `91.3 %` with this many digits, all others to four digits."""
    return f"{shown:.{digits}f} %" if is_percent(metric) else f"{shown:#.4g}"


def named(metric: str, shown: float, digits: int = 1) -> str:
    """The same after the metric's name, unless that is `accuracy`."""
    return text(metric, shown, digits) if metric == ACCURACY else f"{metric} {text(metric, shown, digits)}"


def heading(metric: str) -> str:
    """The metric as an axis title or table heading, with its unit."""
    return f"{metric}, %" if is_percent(metric) else metric
