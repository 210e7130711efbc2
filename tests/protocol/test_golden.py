"""Every method does what it did when the records were made, to the last bit (tests/support/golden.py)."""

import json

import pytest

from golden import RECORDS, cases

CASES = cases()
KEPT = json.loads(RECORDS.read_text())


def test_every_case_has_a_record():
    assert set(KEPT) == set(CASES)


@pytest.mark.parametrize("name", CASES)
def test_nothing_has_moved(name):
    assert CASES[name]() == KEPT[name]


@pytest.mark.parametrize("method", ["fedavg", "paraaegis-static", "paraaegis-feedback", "serial"])
def test_records_tell_methods_and_accidents_apart(method):
    same = {"unequal", "resumed"}
    models = {
        name.removeprefix(f"{method}, "): kept["model"] for name, kept in KEPT.items() if name.startswith(f"{method},")
    }
    assert models["unequal"] == models["resumed"]
    assert len({tuple(model) for name, model in models.items() if name not in same}) == len(models) - 2
