"""What leaves a site, and what each attacker can learn from it: texts by what the ledger says is sent."""

from __future__ import annotations

from collections.abc import Iterator

from paraaegis.privacy.guarantee import CLIENTS, HOLDERS, SERVER
from paraaegis.privacy.ledger import ELECTED, REST, WHOLE, Release
from paraaegis.statement.facts import Facts

WAYS = {  # by how the server sees it
    "clear": "in the clear; the server reads it",
    "noised": "with random noise added; the server reads it with the noise",
    "hidden": "encrypted with keys that all sites share and the server does not have",
    "masked": "encrypted with a secret used once; only the sum over {quorum} or more sites is opened, by the sites",
    "summed": "encrypted with a secret used once; the server opens only the sum over {quorum} or more sites",
}
REPORTED = {
    "samples": "The number of its records",
    "metrics": "How well the model does on this site's own test records (metrics)",
    "seconds": "How long it trained",
}
BALLOT = "A ballot: which values of its update are largest"
SHUFFLED = "positions are shuffled in an order that the sites know and the server does not"


def leaving(facts: Facts) -> Iterator[tuple[str, str, str]]:
    """What leaves a site: what it is, how it travels, how often."""
    last = "times" if facts.past else "times at most, if no round is repeated"
    for what in ("votes", ELECTED, REST, WHOLE, *REPORTED):
        for index, one in enumerate(facts.kinds.get(what, ())):
            count = f"once per round; {facts.counts[what]} {last}"
            yield _name(facts, what), _way(facts, one), "see above" if index else count


def _name(facts: Facts, what: str) -> str:
    ratio, decay = facts.config.protect.ratio, facts.config.protect.decay
    share = f"{100 * ratio:g}%" + (f" (times {decay:g} after every round)" if decay < 1 else "")
    names = {
        "votes": BALLOT,
        ELECTED: f"Of the values of its update, {share}: those with most votes",
        REST: "All other values of its update",
        WHOLE: "All values of its update",
    }
    return names.get(what) or REPORTED[what]


def _way(facts: Facts, one: Release) -> str:
    if one.what == "votes":
        return SHUFFLED if one.server == "hidden" else "the server learns which site voted for which values"
    noise = ", which carries noise" if one.server == "summed" else "; noise is added first"
    return WAYS[one.server].format(quorum=facts.config.federation.quorum) + (
        noise if one.sigma > 0 and one.server != "noised" else ""
    )


def learnt(facts: Facts, adversary: str) -> str:
    """What an adversary can learn even if everything works as intended."""
    if adversary == SERVER:
        texts = _by_the_server(facts)
    elif adversary in (CLIENTS, HOLDERS):
        texts = _by_readers(facts, adversary)
    else:
        texts = _by_both(facts, adversary)
    return " ".join(texts)


def _by_the_server(facts: Facts) -> Iterator[str]:
    quorum, sights = facts.config.federation.quorum, facts.sights(SERVER)
    if "clear" in sights:
        yield f"Every site's update, exactly. {_limit(facts, 'An update often shows what its records were like')}"
    if "noised" in sights:
        yield "Every site's values with that site's noise; how much this still shows is what ε measures below."
    if "summed" in sights:
        noise = ", with noise" if facts.guarantees.sigma else ", exactly, and what they change in the model"
        yield f"Sums over {quorum} or more sites{noise}."
    if sights <= {"hidden", "masked"}:
        yield "No value of any update."
    if "hidden" in facts.sights(SERVER, "votes"):
        yield (
            "From the ballots: how much the choices of any two sites overlap in each round, and so, over time, which "
            "sites have similar records. The shuffled order does not hide that."
        )
        if "noised" in sights:
            yield "A value much larger than the noise may give away which parameter it belongs to."
    if "clear" in facts.sights(SERVER, "votes"):
        yield "Which values each site voted for."
    if reports := [text for what, text in REPORTED.items() if what in facts.kinds]:
        yield f"In the clear: {'; '.join(text[0].lower() + text[1:] for text in reports)}."
    yield "Always: who takes part and when, how long answers take, how long messages are, who declines or stops."


def _by_readers(facts: Facts, adversary: str) -> Iterator[str]:
    quorum, sights, model = facts.config.federation.quorum, facts.sights(adversary), adversary == HOLDERS
    what = "the sum of what all sites changed" if model else f"the sum over {quorum} or more sites, in every round"
    if "clear" in sights:
        part = " in the values with most votes" if facts.method.votes and "noised" in sights else ""
        yield f"{'In the model: ' if model else ''}{what}{part}, exactly.".capitalize()
        yield _limit(facts, "A sum, and a model, can show that a record was used, or what records have in common")
    if "noised" in sights:
        yield f"{what}, with noise; how much this still shows is what ε measures below.".capitalize()
    if model:
        return
    yield f"In a sum over n sites, n − 1 of them together can work out the last one's part (n may be {quorum})."
    if facts.kinds.get("votes"):
        yield "Which values got most votes; a site that gets hold of a ballot can read it."
    if facts.keyed("hidden"):
        yield "All of them have the keys: a site that gets hold of another's upload can open it."
    if "samples" in facts.kinds:
        yield "How many records each site has."


def _by_both(facts: Facts, adversary: str) -> Iterator[str]:
    yield "Everything that the server and fellow sites learn."
    if facts.keyed("hidden"):
        share = ", with only that site's share of the noise" if facts.config.privacy.inside_clip else ""
        noise = share if "clear" not in facts.sights(adversary) else ", exactly"
        yield f"Such a site can hand over the keys, which open every upload of the run{noise or ', with its noise'}."
    if facts.keyed("masked") or facts.keyed("summed"):
        yield f"No single upload, but sums over {facts.config.federation.quorum} or more sites."
    if facts.kinds.get("votes"):
        yield "Which values each site voted for."
    if facts.config.privacy.attempts > 1 and (facts.keyed("masked") or facts.keyed("summed")):
        yield (
            "By calling a round void it can have the round repeated; if training repeats exactly, two sums over "
            "different sites then differ by single sites' updates, with whatever noise these carry."
        )


def _limit(facts: Facts, text: str) -> str:
    if facts.private_records:
        return "What that shows about one record is limited by ε below; about a site as a whole by nothing."
    return f"{text}, and nothing here limits that."
