"""What a method promises, to whom: never an ε without its adversary and its unit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from paraaegis.privacy.calibrate import composed_mu, epsilon_of

Seen = Literal["nothing", "clear", "noised", "hidden"]
SERVER, CLIENTS, HOLDERS = "server and network", "fellow clients", "holders of the model"


@dataclass(frozen=True)
class Exposure:
    """How one part of an update is seen: by the server as it passes, by the clients once it is summed and revealed."""

    server: Seen
    clients: Seen


class Guarantee(msgspec.Struct, frozen=True):
    """What holds against one adversary. `kind`: dp, dp given the partition, computational, or none."""

    adversary: str
    kind: str
    why: str
    unit: str = ""
    epsilon: float | None = None
    delta: float | None = None


Dp = Callable[[str, str, str], Guarantee]


def sensitivity(clip: float, unit: str) -> float:
    """What one client can move its upload by: θ where it may be missing, 2θ where it may be another."""
    return 2 * clip if unit == "client-replace" else clip


def guarantees(
    exposures: Sequence[Exposure], votes: bool, clip: float, sigmas: Sequence[float], delta: float, unit: str
) -> list[Guarantee]:
    """What these exposures of every round's update promise, against each adversary."""
    noisy = all(sigma > 0 for sigma in sigmas)
    epsilon = epsilon_of(composed_mu(sensitivity(clip, unit), sigmas), delta) if noisy else None

    def dp(adversary: str, kind: str, why: str) -> Guarantee:
        if epsilon is None:
            return Guarantee(adversary, "none", "the noise is switched off")
        return Guarantee(adversary, kind, why, unit, epsilon, delta)

    server = {exposure.server for exposure in exposures} - {"nothing"}
    clients = {exposure.clients for exposure in exposures} - {"nothing"}
    return [_against_server(server, votes, dp), *(_against_readers(who, clients, dp) for who in (CLIENTS, HOLDERS))]


def _against_server(seen: set[Seen], votes: bool, dp: Dp) -> Guarantee:
    if "clear" in seen:
        return Guarantee(SERVER, "none", "values pass it in clear")
    if "noised" in seen and votes:
        return dp(
            SERVER,
            "dp given the partition",
            "noised values pass it; which they are depends on a vote that hides positions by a key, not by noise, "
            "so there is no total (ε, δ)",
        )
    if "noised" in seen:
        return dp(SERVER, "dp", "all that passes it is clipped and noised, whatever it does with it afterwards")
    ballots = "; the joint pattern of the clients' votes shows how much they agree" if votes else ""
    return Guarantee(SERVER, "computational", f"only ciphertexts pass it, under a key that it lacks{ballots}")


def _against_readers(adversary: str, seen: set[Seen], dp: Dp) -> Guarantee:
    if "clear" in seen:
        whose = "they decrypt it" if adversary == CLIENTS else "it is in the model"
        return Guarantee(adversary, "none", f"the sum of the encrypted part carries no noise, and {whose}")
    return dp(adversary, "dp", "every value in the aggregate was clipped and noised before it left its client")
