"""Warnings are errors here. typer imports names that click deprecates: let it do so once, before any test counts."""

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import typer.main  # noqa: F401
