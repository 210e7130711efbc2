"""Read a configuration from a TOML file or nested tables, and change it by `key=value` settings."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import tomli_w

from paraaegis.config.refusals import explain, naming
from paraaegis.config.schema import Config
from paraaegis.errors import ConfigError


def as_toml(value: Any) -> str:
    """A value in TOML, as it is written after the `=` of a setting."""
    return tomli_w.dumps({"value": value}).partition("=")[2].strip()


def load_config(path: Path | str, settings: Iterable[str] = ()) -> Config:
    """Read a TOML file, change it by `key=value` settings, and check it."""
    try:
        raw = tomllib.loads(Path(path).read_text(encoding="utf-8-sig"))
        if "rows" in raw:
            raise ConfigError(
                f"{path} is a preset for `paraaegis compare --preset`; expected the file of a single configuration"
            )
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error
    settings = list(settings)
    with naming(path, settings):
        return make_config(raw, settings)


def make_config(raw: Mapping[str, Any], settings: Iterable[str] = ()) -> Config:
    """Build and check a configuration from nested tables."""
    tables = {key: dict(value) if isinstance(value, Mapping) else value for key, value in raw.items()}
    for setting in settings:
        _set(tables, setting)
    try:
        return msgspec.convert(tables, Config)
    except msgspec.ValidationError as error:
        raise ConfigError(explain(str(error), Config, tables)) from error


def _set(tables: dict[str, Any], setting: str) -> None:
    """Apply one `section.key=value`; the value is read as TOML, or as text if it is not valid TOML."""
    key, separator, text = setting.partition("=")
    if not separator or not key.strip():
        raise ConfigError(f"a setting has the form section.key=value, got {setting!r}")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text
    *sections, name = key.strip().split(".")
    table = tables
    for section in sections:
        table = table.setdefault(section, {})
        if not isinstance(table, dict):
            raise ConfigError(f"{section} is a single value, not a table, so {key} cannot be set")
    table[name] = value
