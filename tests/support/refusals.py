"""How a configuration is refused."""

import pytest

from paraaegis.config import make_config
from paraaegis.errors import ConfigError


def refusal(*settings, raw=None):
    with pytest.raises(ConfigError) as caught:
        make_config(raw or {}, settings)
    return str(caught.value)


def outcome(build):
    try:
        return build()
    except ConfigError as error:
        return str(error)
