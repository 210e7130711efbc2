"""The small preset as a file."""

import pytest

from small_preset import PRESET


@pytest.fixture
def preset(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(PRESET)
    return path
