"""A configuration built in Python is checked as one from a file."""

import math
import re

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from paraaegis.config import Config, Section, make_config
from paraaegis.config.listing import all_keys
from paraaegis.errors import ConfigError
from refusals import outcome

TABLES = {name: type(table) for name, table in msgspec.structs.asdict(Config()).items() if isinstance(table, Section)}
KEYS = [tuple(key.name.split(".")) for key in all_keys() if "." in key.name]
VALUES = st.sampled_from([-1, 0, 1, 3, 2**70, -0.5, 0.5, 1.5, 1e300, math.inf, math.nan, True, "Tight", "tight", "max",
                          None, [], ["a"], {}, {"x": 1}])  # fmt: skip


@given(key=st.sampled_from(KEYS), value=VALUES)
def test_a_configuration_built_in_python_is_checked_as_one_from_a_file(key, value):
    """The same result or the same refusal, from the constructor, by replacement and from nested tables."""
    table, name = key
    read = outcome(lambda: make_config({table: {name: value}}))
    built = outcome(lambda: Config(**{table: TABLES[table](**{name: value})}))
    unset = {"clients": 0} if name == "names" else {}  # else the names would have to be ten
    replaced = outcome(
        lambda: replace(Config(), **{table: replace(getattr(Config(), table), **unset, **{name: value})})
    )
    assert built == replaced == read
    if isinstance(read, Config):
        assert built.digest() == replaced.digest() == read.digest()


@pytest.mark.parametrize(
    ("build", "told"),
    [
        (lambda: TABLES["privacy"](calibration="Tight"), "privacy.calibration must be one of tight, paper, got 'Tight' "
         "(did you mean 'tight'?)"),
        (lambda: TABLES["privacy"](delta=2), "privacy.delta must be a number < 1, got 2"),
        (lambda: replace(Config(), seed=-1), "seed must be a whole number ≥ 0, got -1"),
        (lambda: Config(protect=3), "protect is a table of settings, got 3; set one of its keys instead: "),
        (lambda: Config(privacy=TABLES["privacy"](clip=math.inf)), "privacy.clip = inf leaves nothing to calibrate"),
        (lambda: Config(protect={"rato": 0.1}), "unknown key 'protect.rato' (did you mean 'ratio'?)"),
    ],
)  # fmt: skip
def test_what_is_wrong_in_python_is_told_in_the_words_for_files(build, told):
    with pytest.raises(ConfigError, match=re.escape(told)):
        build()


def test_a_whole_number_or_numpys_is_taken_for_a_float():
    assert type(TABLES["protect"](ratio=1).ratio) is type(TABLES["protect"](ratio=np.float64(1)).ratio) is float
