"""A statement is true whatever is configured: its texts are checked against the guarantees that they speak of."""

import itertools
import re
from functools import cache

import pytest

from paraaegis.config import make_config
from paraaegis.errors import ConfigError
from paraaegis.methods import METHODS
from paraaegis.privacy.guarantee import SERVER
from paraaegis.runs.guarantees import run_guarantees
from paraaegis.statement.facts import facts_of_config
from paraaegis.statement.page import statement
from paraaegis.statement.remedies import remedies
from paraaegis.statement.render import as_html, as_markdown

BASE = (
    "federation.rounds=3",
    "federation.min_samples=100",
    "privacy.epsilon=2",
    "train.epochs=1",
)
CHOICES = (
    ("protect.cipher=ckks", "protect.cipher=rlwe"),
    ("privacy.unit=client", "privacy.unit=client-replace", "privacy.unit=record"),
    ("privacy.calibration=paper", "privacy.calibration=tight"),
    ("privacy.noise=seeded", "privacy.noise=secret"),
)
MORE = (  # each alone, next to the first of the other choices
    ("privacy.inside_clip=1", "privacy.calibration=tight"),
    ("protect.cipher=rlwe", "protect.reveal=server"),
    ("protect.cipher=rlwe", "protect.reveal=server", "privacy.inside_clip=1"),
    ("privacy.epsilon=inf",),
    ("privacy.epsilon=40", "privacy.calibration=tight"),
    ("privacy.sigma=0.001",),
    ("federation.weights=uniform", "privacy.attempts=1"),
    ("engine.share_metrics=true", "engine.share_seconds=true"),
    ("federation.clients=2", "federation.quorum=2"),
    ("privacy.unit=record", "privacy.calibration=tight", "privacy.group=3", "privacy.sample_rate=1"),
)
CASES = [*itertools.product(*CHOICES), *MORE]
FIGURE = re.compile(r"ε = [\d.e+]+, δ = [\d.e-]+, unit: (client-replace|client|record|person with up to \d+ records)")


def accepted(method):
    """The configurations of a method that a run accepts."""
    for case in CASES:
        try:
            config = make_config({}, [*BASE, f"protect.method={method}", *case])
            run_guarantees(config)
        except ConfigError:
            continue
        yield config


@cache
def made(method):
    """Each configuration's facts, statement and its Markdown."""
    facts = [facts_of_config(config) for config in accepted(method)]
    pages = [statement(each) for each in facts]
    return [(each, page, as_markdown(page)) for each, page in zip(facts, pages, strict=True)]


def section(page, title):
    return next(one for one in page.sections if one.title == title)


def cells(facts, page):
    """Each guarantee with its cell in the table."""
    readers, guarantees = section(page, "Who can read it"), facts.guarantees.guarantees
    names = list(dict.fromkeys(row.adversary for row in guarantees))
    units = list(dict.fromkeys(row.unit for row in guarantees))
    return [(row, readers.rows[names.index(row.adversary)][1 + units.index(row.unit)]) for row in guarantees]


@pytest.mark.parametrize("method", METHODS)
def test_an_epsilon_never_stands_without_unit_delta_and_attacker(method):
    for facts, page, text in made(method):
        assert len(re.findall("ε = ", text)) == len(FIGURE.findall(text))
        for row, cell in cells(facts, page):
            assert row.figure in cell
        for item in section(page, "What ε means here").items:
            assert item.startswith("Against ") == ("ε = " in item)
            assert item.startswith("Against ") or "no such guarantee against" in item


@pytest.mark.parametrize("method", METHODS)
def test_nothing_is_called_protected_that_is_not(method):
    for facts, page, _ in made(method):
        for row, cell in cells(facts, page):
            assert cell.startswith("Not protected") == (facts.standing(row) in ("none", "weak"))
            assert (facts.standing(row) == "none") == (row.kind == "none")
            assert cell.startswith("Limited by noise") <= ("dp" in row.kind and row.epsilon < 40)
            assert cell.startswith("Cannot read it") <= row.kind.endswith("computational")
            if row.kind == "none":
                index = 0 if row.unit.startswith("client") else 1
                assert "nothing limits what" in section(page, "In short").items[index]
                assert any("no such guarantee against" in item for item in section(page, "What ε means here").items)


@pytest.mark.parametrize("method", METHODS)
def test_it_is_called_a_simulation_if_and_only_if_it_is_seeded(method):
    for facts, page, text in made(method):
        seeded = facts.config.privacy.noise == "seeded"
        assert ("simulation" in text) == seeded == page.simulation
        assert page.sections[0].text[0].startswith("This is a simulation and protects nobody") == seeded


@pytest.mark.parametrize("method", METHODS)
def test_every_remedy_changes_a_guarantee_as_it_says(method):
    for facts, _, text in made(method):
        for one in remedies(facts):
            tables = facts.config.tables()
            if any("cipher" in setting for setting in one.settings):
                del tables["protect"]["profile"]
            other = facts_of_config(make_config(tables, one.settings))
            after = other.guarantees
            assert (after.guarantees, set(other.kinds)) != (facts.guarantees.guarantees, set(facts.kinds)) or (
                one.settings == ["privacy.noise=secret"]  # keys are drawn, too, where the accounting knows no noise
            )
            figures = {row.figure for row in after.guarantees}
            assert all(figure.group() in figures for figure in FIGURE.finditer(one.effect))
            assert all(f"`{setting}`" in text for setting in one.settings)


@pytest.mark.parametrize("method", METHODS)
def test_a_gap_has_its_remedy(method):
    for facts, _, _ in made(method):
        given = {setting for one in remedies(facts) for setting in one.settings}
        config, enough = facts.config, facts.config.federation.clients > 2
        assert ("privacy.noise=secret" in given) == (config.privacy.noise == "seeded")
        assert ("federation.weights=uniform" in given) == (config.federation.weights == "samples")
        assert ("protect.cipher=rlwe" in given) >= (enough and facts.sent("hidden"))
        records = [row for row in facts.guarantees.guarantees if not row.unit.startswith("client")]
        open_ones = [row for row in records if facts.standing(row) in ("none", "sums", "weak")]
        if config.privacy.unit != "record":
            assert ("privacy.unit=record" in given) >= bool(open_ones)


@pytest.mark.parametrize("method", METHODS)
def test_what_the_server_reads_is_what_is_sent(method):
    for facts, page, _ in made(method):
        server = section(page, "What they could still learn").items[0]
        sights = facts.sights(SERVER)
        assert ("update, exactly" in server) == ("clear" in sights)
        assert ("update, with its noise" in server) == ("noised" in sights)
        assert ("Sums over" in server) == ("summed" in sights)
        assert ("No value of any update" in server) == (sights <= {"hidden", "masked"})
        sent = {row[0] for row in page.sections[1].rows}
        assert len(sent) == len(facts.kinds)


@pytest.mark.parametrize("method", METHODS)
def test_both_forms_say_the_same(method):
    for _, page, text in made(method):
        html = as_html(page)
        words = re.sub(r"\s+", " ", re.sub(r"<style>.*?</style>|<[^>]+>", " ", html, flags=re.DOTALL))
        for one in page.sections:
            for piece in (one.title, *one.text, *one.items, *itertools.chain(*one.rows)):
                assert piece in text
                plain = piece.replace("`", " ").replace("&", "&amp;").replace('"', "&quot;").replace("'", "&#x27;")
                assert re.sub(r"\s+", "", plain) in re.sub(r"\s+", "", words)
        assert "<script" not in html
        assert "http" not in html


def test_enough_combinations_are_accepted():
    assert all(len(made(method)) >= len(CASES) // 2 for method in METHODS)
    assert {facts.place for method in METHODS for facts, _, _ in made(method)} == {"plan"}
