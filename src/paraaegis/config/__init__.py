"""The configuration of a run: a TOML file, checked completely before any work."""

from paraaegis.config.names import check_names, numbered
from paraaegis.config.reading import as_toml, load_config, make_config
from paraaegis.config.refusals import explain, meant, naming
from paraaegis.config.rules import MOST, PASSED
from paraaegis.config.schema import LOCAL_KEYS, PROFILES, Config, Privacy, Protect, Section

__all__ = [
    "LOCAL_KEYS",
    "MOST",
    "PASSED",
    "PROFILES",
    "Config",
    "Privacy",
    "Protect",
    "Section",
    "as_toml",
    "check_names",
    "explain",
    "load_config",
    "make_config",
    "meant",
    "naming",
    "numbered",
]
