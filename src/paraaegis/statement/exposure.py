"""What leaves a site, and what each attacker can learn from it: texts by what is sent and how it is seen."""

from __future__ import annotations

from collections.abc import Iterator

from paraaegis.privacy.guarantee import CLIENTS, HOLDERS, SERVER, server_with
from paraaegis.privacy.ledger import ELECTED, REST, SAMPLES, WHOLE, Release
from paraaegis.statement.facts import Facts

WAYS = {  # by how the server sees it
    "clear": "in the clear",
    "noised": "with random noise added",
    "hidden": "encrypted with keys that all sites share and the server does not have",
    "masked": "encrypted with a secret used once; only the sites together can open it, and only a sum over {quorum} or "
    "more of them",
    "summed": "encrypted with a secret used once; the server opens only the sum over {quorum} or more sites",
}
BOUND = "; ε below says what this can still show."
REPORTS = {
    "samples": "the number of its records",
    "metrics": "how well the model does on its own test records (metrics)",
    "seconds": "how long it trained",
}


def leaving(facts: Facts) -> Iterator[list[str]]:
    """What leaves a site: what it is, how it travels, how often."""
    ratio, decay = facts.config.protect.ratio, facts.config.protect.decay
    share = f"{100 * ratio:g}% of all" + (f", times {decay:g} after every round" if decay < 1 else "")
    names = {
        "votes": f"a ballot: the positions of its largest values ({share})",
        ELECTED: f"the elected values: those with most votes from all sites ({share})",
        REST: "all other values of its update",
        WHOLE: "all values of its update",
        **REPORTS,
    }
    for what, name in names.items():
        count = "when a run starts" if what == SAMPLES.what else f"once per round, {facts.counts[what]} in all"
        ways = dict.fromkeys(_way(facts, one) for one in facts.kinds.get(what, ()))
        yield from ([name[0].upper() + name[1:], way, count] for way in ways)


def _way(facts: Facts, one: Release) -> str:
    if one.what == "votes" and one.server == "hidden":
        return "shuffled in an order that the sites know and the server does not"
    noise = " noise is added first" if one.sigma and one.server != "noised" else ""
    return WAYS[one.server].format(quorum=facts.config.federation.quorum) + (noise and f";{noise}")


def learnt(facts: Facts, adversary: str) -> str:
    """What an attacker can learn even if everything works as intended."""
    texts = {SERVER: _by_the_server, CLIENTS: _by_sites, HOLDERS: _by_holders}.get(adversary, _by_both)
    return " ".join(texts(facts))


def _by_the_server(facts: Facts) -> Iterator[str]:
    sights, votes = facts.sights(SERVER), {one.server for one in facts.kinds.get("votes", ())}
    what = "Every site's update" if len(sights) == 1 else "What is not encrypted of every site's update"
    if "clear" in sights:
        yield f"{what}, exactly. {_limit(facts, 'An update often shows what its records are like')}"
    if "noised" in sights:
        yield f"{what}, with its noise{BOUND}"
    if "summed" in sights:
        noise = f"with noise{BOUND}" if facts.guarantees.sigma else "exactly, and so what they change in the model."
        yield f"Sums over {facts.config.federation.quorum} or more sites, {noise}"
    if sights <= {"hidden", "masked"}:
        yield "No value of any update."
    if "hidden" in votes:
        yield "How much the choices of any two sites overlap, not where; over time, which sites have similar records."
    if "hidden" in votes and "noised" in sights:
        yield "A value much larger than its noise may show which parameter of the model it belongs to."
    if "clear" in votes:
        yield "Which values each site voted for."
    if reports := [text for what, text in REPORTS.items() if what in facts.kinds]:
        yield f"Of each site, in the clear: {'; '.join(reports)}."
    yield "Always: who takes part and when, how long answers take, how long messages are, who declines or stops."


def _by_sites(facts: Facts) -> Iterator[str]:
    quorum = facts.config.federation.quorum
    yield from _sums(facts, CLIENTS, f"sum over {quorum} or more sites in every round")
    own = "only its own share of the noise" if any(one.quorum for one in facts.values) else "its noise"
    noise = "" if "clear" in facts.sights(CLIENTS) else f", with {own}"
    yield f"All but one of the sites in a sum can together work out the last one's part{noise}."
    if "votes" in facts.kinds:
        yield "Which values are elected; and, if they get hold of a site's ballot, what it voted for."
    if facts.sent("hidden"):
        yield "Since all sites share the keys, a site that gets hold of another's upload can open it."
    if "samples" in facts.kinds:
        yield "How many records each site has."


def _by_holders(facts: Facts) -> Iterator[str]:
    yield from _sums(facts, HOLDERS, "sum of all rounds, which is in the model")


def _sums(facts: Facts, adversary: str, name: str) -> Iterator[str]:
    sights = facts.sights(adversary)
    if "clear" in sights:
        part = ", of the elected values" if "noised" in sights else ""
        yield f"The exact {name}{part}. {_limit(facts, 'A sum or a model can show that a record was used')}"
    if "noised" in sights:
        rest = ", of the other values, with noise." if "clear" in sights else f", with noise{BOUND}"
        yield f"The {name}{rest}"


def _by_both(facts: Facts) -> Iterator[str]:
    quorum, privacy = facts.config.federation.quorum, facts.config.privacy
    yield "Everything that the server and fellow sites learn."
    if facts.sent("hidden"):
        whose = "the site's share of the noise only" if privacy.inside_clip else "their site's noise"
        noise = "no noise" if "clear" in facts.sights(server_with(privacy)) else whose
        yield f"A site can hand over its keys, which open the encrypted values of every upload; these carry {noise}."
    if "votes" in facts.kinds:
        yield "Which values each site voted for."
    if facts.sent("masked", "summed"):
        yield f"No single upload, but sums over {quorum} or more sites."
        if privacy.attempts > 1:
            yield (
                "The server can have a round repeated; if training repeats exactly, two sums over different sites then "
                "differ by single sites' updates, with whatever noise these carry."
            )


def _limit(facts: Facts, text: str) -> str:
    if facts.records_limited:
        return "For one record, ε below says what this can still show; for a site as a whole, nothing limits it."
    return f"{text}, and nothing here limits that."
