"""Compiled loops are cached where that is safe, and work where nothing can be cached."""

import numba
import pytest

from paraaegis import compiled


def double(values):
    return values * 2


@pytest.fixture
def nowhere(monkeypatch):
    """numba finds no folder of its own to write to, once."""
    real, refused = numba.njit, []

    def njit(**options):
        if options.get("cache") and not refused:
            refused.append(options)
            raise RuntimeError("cannot cache function: no locator available")
        return real(**options)

    monkeypatch.setattr(numba, "njit", njit)
    monkeypatch.setattr(numba.config, "CACHE_DIR", "")
    compiled.compiled.cache_clear()
    compiled._warn_once.cache_clear()
    yield
    compiled.compiled.cache_clear()


def test_a_folder_of_ours_is_used_where_numba_finds_none(nowhere, monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    assert compiled.compiled(double)(21) == 42
    (folder,) = tmp_path.iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert str(folder) == numba.config.CACHE_DIR


@pytest.mark.parametrize("trap", ["mode", "link", "file"])
def test_a_folder_that_others_could_have_prepared_is_not_used(nowhere, monkeypatch, tmp_path, trap):
    """numba runs what it finds in its cache."""
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    name = f"paraaegis-{compiled.os.getuid()}"
    if trap == "mode":
        (tmp_path / name).mkdir(mode=0o777)
        (tmp_path / name).chmod(0o777)
    elif trap == "link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        (tmp_path / name).symlink_to(tmp_path / "elsewhere")
    else:
        (tmp_path / name).write_text("")
    with pytest.warns(UserWarning, match="NUMBA_CACHE_DIR"):
        assert compiled.compiled(double)(21) == 42
    assert numba.config.CACHE_DIR == ""
