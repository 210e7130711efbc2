"""Warnings are errors here. typer imports names that click deprecates: let it do so once, before any test counts."""

import signal
import warnings

import pytest

# A shell's background job ignores interrupts, and so would its children.
signal.signal(signal.SIGINT, signal.default_int_handler)

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import typer.main  # noqa: F401


FIRST = "test_flower", "test_resume", "test_flower_app", "test_accuracy"  # minutes, which others fill on the other core


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: FIRST.index(item.path.stem) if item.path.stem in FIRST else len(FIRST))


@pytest.fixture(scope="session", autouse=True)
def _cache(tmp_path_factory):
    """What is remembered of this machine is forgotten with the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield
