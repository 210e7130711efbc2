import pytest

from paraaegis.plural import plural


@pytest.mark.parametrize(("number", "text"), [(0, "0 rounds"), (1, "1 round"), (2, "2 rounds"), (1500, "1500 rounds")])
def test_only_one_is_singular(number, text):
    assert plural(number, "round") == text
