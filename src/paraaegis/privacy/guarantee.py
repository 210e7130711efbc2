"""The guarantees that follow from a ledger, by adversary and unit: never an ε without both.

Of a client's update as a whole here, of one record in record_guarantee.py.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

import msgspec

from paraaegis.config import Privacy
from paraaegis.plural import plural
from paraaegis.privacy.calibrate import epsilon_of
from paraaegis.privacy.ledger import ELECTED, REST, WHOLE, Exposure, Release, Seen

SERVER, CLIENTS, HOLDERS = "server and network", "fellow clients", "holders of the model"
VALUES = (WHOLE, ELECTED, REST)
NOISED = ("noised", "summed")


class Guarantee(msgspec.Struct, frozen=True):
    """What protects one unit against one adversary. `kind`: dp, with its conditions, computational, or none.

    `unit`: client or client-replace, a client's whole contribution; record, or a person with several.
    """

    adversary: str
    kind: str
    why: str
    unit: str = ""
    epsilon: float | None = None
    delta: float | None = None

    @property
    def figure(self) -> str:
        """ε with its δ and unit; empty if there is none."""
        return "" if self.epsilon is None else f"ε = {self.epsilon:.4g}, δ = {self.delta:g}, unit: {self.unit}"


def by_adversary(guarantees: Sequence[Guarantee]) -> list[tuple[str, list[tuple[str, Guarantee]]]]:
    """For each adversary its guarantees, each with its unit, or with several if all that is said of them is equal."""
    rows: dict[str, list[tuple[str, Guarantee]]] = defaultdict(list)
    for one in guarantees:
        own = rows[one.adversary]
        if own and own[-1][1] == msgspec.structs.replace(one, unit=own[-1][1].unit):
            own[-1] = f"{own[-1][0]}, {one.unit}", own[-1][1]
        else:
            own.append((one.unit, one))
    return list(rows.items())


Dp = Callable[[str, str], Guarantee]


def sensitivity(clip: float, unit: str) -> float:
    """The most one client's upload can change: θ if the client may be absent, 2θ if it may be replaced."""
    return 2 * clip if unit == "client-replace" else clip


def client_guarantees(releases: Sequence[Release], privacy: Privacy) -> list[Guarantee]:
    """The guarantee of a client's contribution against each adversary, for the client that released most."""
    values = [release for release in releases if release.what in VALUES]
    votes = [release for release in releases if release.what == "votes"]
    counted = any(release.what == "samples" for release in releases)
    unit = "client" if privacy.unit == "record" else privacy.unit

    def dp_against(adversary: str) -> Dp:
        return _dp(values, adversary, privacy.delta, unit)

    helped = server_with(privacy)
    rows = [
        _against_server(values, votes, reported(releases), dp_against(SERVER)),
        *(
            _against_readers(who, values, bool(votes), counted and who == CLIENTS, dp_against(who))
            for who in (CLIENTS, HOLDERS)
        ),
        _against_both(helped, values, bool(votes), dp_against(helped)),
    ]
    return [msgspec.structs.replace(row, unit=unit) for row in rows]


def server_with(privacy: Privacy) -> str:
    """The adversary that consists of the server and as many clients as the configuration assumes."""
    return f"server with {plural(privacy.colluders, 'client')}"


def mu_against(adversary: str, releases: Iterable[Release], unit: str) -> float | None:
    """μ of the client that spent most, from the releases this adversary sees noised; None if noise is missing."""
    squares: dict[str, float] = defaultdict(float)
    for release in releases:
        if sight_of(release, adversary) in NOISED:
            if release.sigma <= 0:
                return None
            sigma = sigma_against(adversary, release)
            squares[release.client] += (sensitivity(release.clip, unit) / sigma) ** 2
    return math.sqrt(max(squares.values(), default=0.0))


def sight_of(part: Release | Exposure, adversary: str) -> Seen:
    """How an adversary sees a part; holders of the model see what the clients see.

    The server with the help of clients opens whatever is under a key that they share, but only sums of masked values.
    """
    if adversary in (CLIENTS, HOLDERS):
        return part.clients
    if adversary != SERVER and part.server == "hidden":
        return part.clients
    return "summed" if adversary != SERVER and part.server == "masked" else part.server


def sigma_against(adversary: str, release: Release) -> float:
    """The noise that protects a value against an adversary.

    Of noise that clients share, an upload opened with their key has only its own client's share.
    """
    alone = adversary not in (SERVER, CLIENTS, HOLDERS) and release.server == "hidden" and release.quorum
    return release.sigma / math.sqrt(release.quorum - release.colluders) if alone else release.sigma


def _seen(releases: Iterable[Release], adversary: str) -> set[Seen]:
    return {sight_of(release, adversary) for release in releases} - {"nothing"}


def reported(releases: Iterable[Release]) -> str:
    """What clients report to the server in addition to the values, in words."""
    texts = {
        "samples": "its number of samples",
        "metrics": "its metrics on its own hold-out data",
        "seconds": "how long it trained",
    }
    return ", ".join(text for what, text in texts.items() if any(release.what == what for release in releases))


def _dp(releases: Sequence[Release], adversary: str, delta: float, unit: str) -> Dp:
    mu = mu_against(adversary, releases, unit)
    simulated = "simulated " if any(release.simulated for release in releases) else ""

    def dp(kind: str, why: str) -> Guarantee:
        if mu is None:
            return Guarantee(adversary, "none", "the noise is switched off")
        return Guarantee(adversary, simulated + kind, why, unit, epsilon_of(mu, delta), delta)

    return dp


def _against_server(values: Sequence[Release], votes: Sequence[Release], reports: str, dp: Dp) -> Guarantee:
    seen, also = _seen(values, SERVER), f"; each client also reports, in the clear, {reports}" if reports else ""
    values_only = ", of the values alone" if "hold-out" in reports else ""
    simulated = "simulated " if any(vote.simulated for vote in votes) else ""
    if any(vote.server == "clear" for vote in votes):
        also = f"; it learns which parameters are elected, and which clients voted for them{also}"
    if not seen:
        return Guarantee(SERVER, "nothing sent", f"it saw no values{also}")
    if "clear" in seen:
        return Guarantee(SERVER, "none", f"it sees values in the clear{also}")
    if "noised" in seen and votes:
        return dp(
            f"dp given the partition{values_only}",
            "it sees noised values; which values these are depends on a vote that hides positions by a key, not by "
            f"noise, so there is no total (ε, δ){also}",
        )
    if "summed" in seen and not any(value.sigma for value in values):
        return Guarantee(
            SERVER,
            f"{simulated}computational, sums only",
            "it opens sums over a quorum or more, without noise; with the help of up to privacy.colluders clients it "
            f"opens no single upload{also}",
        )
    if "summed" in seen:
        given = " given the partition" if votes else ""
        return dp(
            f"computational dp{given}{values_only}",
            "it can unmask only the sum, which carries this noise, if learning with errors is hard and at most "
            f"privacy.colluders clients help it{also}",
        )
    if "noised" in seen:
        why = "all values that it sees are clipped and noised, whatever it does with them afterwards"
        return dp(f"dp{values_only}", why + also)
    ballots = "; the joint pattern of the clients' votes shows how much they agree" if votes else ""
    sees = "only ciphertexts under a key that it does not have, if ring learning with errors is hard"
    if "masked" in seen:
        sees = (
            "only masked values, which it cannot open if ring learning with errors is hard; with the help of up to "
            "privacy.colluders clients it can open a sum, but no single upload"
        )
    return Guarantee(SERVER, f"{simulated}computational", f"it sees {sees}{ballots}{also}")


def _against_readers(adversary: str, values: Sequence[Release], votes: bool, counted: bool, dp: Dp) -> Guarantee:
    seen, also = _seen(values, adversary), "; they also learn its number of samples" if counted else ""
    if adversary == CLIENTS and any(value.server == "hidden" for value in values):
        also += "; they all have the round's key, so they can open any upload that they obtain"
    elif adversary == CLIENTS and any(value.server in ("masked", "summed") for value in values):
        also += "; no key opens a single upload, not even theirs"
    if not seen:
        return Guarantee(adversary, "nothing sent", "they saw no values")
    if "clear" in seen:
        whose = "they read it" if adversary == CLIENTS else "it is in the model"
        encrypted = votes and any(value.server in ("hidden", "masked") for value in values)
        part = "the sum of the encrypted part" if encrypted else "the sum"
        return Guarantee(adversary, "none", f"{part} carries no noise, and {whose}{also}")
    shared = next((release for release in values if release.quorum), None)
    noise = "everything they see contains every client's own noise"
    if shared is not None:
        noise = (
            f"a sum over {shared.quorum} or more clients carries this noise, even if {shared.colluders} of them "
            "subtract their own, provided that no client helps the server and the others add their share"
        )
    if votes:
        known = "they know the elected positions" if adversary == CLIENTS else "the elected positions shaped the model"
        return dp("dp given the partition", f"{noise}; but {known}, which no noise protects{also}")
    return dp("dp", noise + also)


def _against_both(adversary: str, values: Sequence[Release], votes: bool, dp: Dp) -> Guarantee:
    """The guarantee against the server with the help of clients, who know the elected positions."""
    seen = {sight_of(value, adversary) for value in values} - {"nothing"}
    opened = any(value.server == "hidden" for value in values)
    keys = "its clients have the round's key, which opens every upload, and " if opened else ""
    known = "; they know which parameters each client voted for" if votes else ""
    if not seen:
        return Guarantee(adversary, "nothing sent", f"they saw no values{known}")
    if "clear" in seen:
        clear = "the encrypted values carry no noise" if opened else "the server sees values in the clear"
        return Guarantee(adversary, "none", f"{keys}{clear}{known}")
    clean = any(sight_of(value, adversary) == "summed" and not value.sigma for value in values)
    if clean:
        rest = "; the others carry noise" if "noised" in seen else ""
        why = f"no key opens a single upload of masked values, only sums over a quorum, without noise{rest}{known}"
        return Guarantee(adversary, "computational, sums only", why)
    kind = "computational dp" if "summed" in seen else "dp"
    noise = "every upload carries its client's own noise"
    if "summed" in seen:
        noise = "no key opens a single upload, and sums carry this noise after those clients have subtracted their own"
    elif any(value.quorum for value in values):
        noise = "an upload carries only its client's share of the noise"
    return dp(kind + (" given the partition" if votes else ""), f"{keys}{noise}{known}")
