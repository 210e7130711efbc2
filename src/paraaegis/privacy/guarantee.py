"""What a ledger amounts to, against whom: never an ε without its adversary and its unit."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

import msgspec

from paraaegis.privacy.calibrate import epsilon_of
from paraaegis.privacy.ledger import Release, Seen

SERVER, CLIENTS, HOLDERS = "server and network", "fellow clients", "holders of the model"
VALUES = ("update", "inside", "outside")


class Guarantee(msgspec.Struct, frozen=True):
    """What holds against one adversary. `kind`: dp, dp given the partition, computational (dp), or none."""

    adversary: str
    kind: str
    why: str
    unit: str = ""
    epsilon: float | None = None
    delta: float | None = None


Dp = Callable[[str, str], Guarantee]


def sensitivity(clip: float, unit: str) -> float:
    """What one client can move its upload by: θ where it may be missing, 2θ where it may be another."""
    return 2 * clip if unit == "client-replace" else clip


def guarantees(releases: Sequence[Release], delta: float, unit: str) -> list[Guarantee]:
    """What these releases promise the client that released most, against each adversary."""
    values = [release for release in releases if release.what in VALUES]
    votes = any(release.what == "votes" for release in releases)
    beside = _beside(releases)
    return [
        _against_server(_seen(values, SERVER), votes, beside, _dp(values, SERVER, delta, unit)),
        *(
            _against_readers(who, _seen(values, who), votes, _dp(values, who, delta, unit))
            for who in (CLIENTS, HOLDERS)
        ),
    ]


def mu_against(adversary: str, releases: Iterable[Release], unit: str) -> float | None:
    """μ of the client that spent most, by what this adversary sees noised; None where noise is missing."""
    squares: dict[str, float] = defaultdict(float)
    for release in releases:
        if _sight(release, adversary) in ("noised", "summed"):
            if release.sigma <= 0:
                return None
            squares[release.client] += (sensitivity(release.clip, unit) / release.sigma) ** 2
    return math.sqrt(max(squares.values(), default=0.0))


def _sight(release: Release, adversary: str) -> Seen:
    return release.server if adversary == SERVER else release.clients


def _seen(releases: Iterable[Release], adversary: str) -> set[Seen]:
    return {_sight(release, adversary) for release in releases} - {"nothing"}


def _beside(releases: Iterable[Release]) -> str:
    """What the server is told beside the values."""
    known = {"samples": "its number of samples", "metrics": "what it measured on its own hold-out data"}
    told = [text for what, text in known.items() if any(release.what == what for release in releases)]
    return f"; beside them a client tells {' and '.join(told)} in clear" if told else ""


def _dp(releases: Sequence[Release], adversary: str, delta: float, unit: str) -> Dp:
    mu = mu_against(adversary, releases, unit)

    def dp(kind: str, why: str) -> Guarantee:
        if mu is None:
            return Guarantee(adversary, "none", "the noise is switched off")
        return Guarantee(adversary, kind, why, unit, epsilon_of(mu, delta), delta)

    return dp


def _against_server(seen: set[Seen], votes: bool, beside: str, dp: Dp) -> Guarantee:
    if not seen:
        return Guarantee(SERVER, "computational", f"no values passed it{beside}")
    if "clear" in seen:
        return Guarantee(SERVER, "none", f"values pass it in clear{beside}")
    if "noised" in seen and votes:
        return dp(
            "dp given the partition",
            "noised values pass it; which they are depends on a vote that hides positions by a key, not by noise, "
            f"so there is no total (ε, δ){beside}",
        )
    if "summed" in seen:
        return dp(
            "computational dp",
            "it can unmask only the sum, which carries this noise, if learning with errors is hard and it names one "
            f"set of survivors{beside}",
        )
    if "noised" in seen:
        return dp(
            "dp", f"all values that pass it are clipped and noised, whatever it does with them afterwards{beside}"
        )
    ballots = "; the joint pattern of the clients' votes shows how much they agree" if votes else ""
    return Guarantee(SERVER, "computational", f"only ciphertexts pass it, under a key that it lacks{ballots}{beside}")


def _against_readers(adversary: str, seen: set[Seen], votes: bool, dp: Dp) -> Guarantee:
    if "clear" in seen:
        whose = "they read it" if adversary == CLIENTS else "it is in the model"
        part = "the sum of the encrypted part" if votes else "the sum"
        return Guarantee(adversary, "none", f"{part} carries no noise, and {whose}")
    if votes:
        known = "they know the elected positions" if adversary == CLIENTS else "the elected positions shaped the model"
        return dp(
            "dp given the partition", f"every value in the aggregate is noised, but {known}, which no noise protects"
        )
    return dp("dp", "every value was clipped, and a sum over a quorum carries this noise at least")
