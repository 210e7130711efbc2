"""Learners of the user's own: found by the name in a configuration, and their models saved."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import TypeAlias

import numpy as np

from paraaegis.config import PASSED, Config, meant
from paraaegis.errors import ConfigError, LearnerError
from paraaegis.files import write_whole
from paraaegis.types import Learner, Vector

MakeLearner: TypeAlias = Callable[[Config, str], Learner]


def importable(folder: Path | str | None) -> None:
    """Let modules in this folder be imported, here and in Flower's processes: a configuration file's, or a node's."""
    place = str(Path(folder or ".").resolve())
    if place not in sys.path:
        sys.path.insert(0, place)
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [place, os.environ.get("PYTHONPATH")]))


def find_maker(config: Config) -> MakeLearner:
    """The function that a configuration's `learner` names. Imports its module."""
    if config.learner == PASSED:
        raise ConfigError(
            'this configuration is of learners passed to paraaegis.federate; to run them from here, set learner = "'
            'module:function", a function that makes the learner of a client'
        )
    module_name, _, name = config.learner.partition(":")
    if module_name.partition(".")[0] in sys.stdlib_module_names:
        raise ConfigError(
            f"learner = {config.learner!r}: Python's standard library has a module {module_name}; give your file "
            "another name"
        )
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name and module_name.startswith(error.name):
            raise ConfigError(
                f"learner = {config.learner!r}: there is no module {module_name}; put {module_name.replace('.', '/')}"
                ".py next to the configuration file, or install its package"
            ) from error
        raise LearnerError(f"learner = {config.learner!r}: importing {module_name} failed: {error!r}") from error
    function = getattr(module, name, None)
    if not callable(function):
        functions = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise ConfigError(
            f"learner = {config.learner!r}: {module.__file__} has no function {name}{meant(name, functions)}"
        )
    _check_call(function, config)
    return _named(function, config.learner)


def _check_call(function: Callable[..., object], config: Config) -> None:
    """Refuse a function that cannot be called with a configuration and a client."""
    try:
        signature = inspect.signature(function)
    except ValueError:  # a builtin tells nothing
        return
    try:
        signature.bind(config, "")
    except TypeError as error:
        name = config.learner.partition(":")[2]
        raise ConfigError(
            f"learner = {config.learner!r}: {name} is called as {name}(config, client), but it is defined as "
            f"{name}{signature}"
        ) from error


def _named(function: MakeLearner, learner: str) -> MakeLearner:
    """The function, with errors that name it and its client, and a check that it returned a learner."""

    def make(config: Config, client: str) -> Learner:
        try:
            made = function(config, client)
        except Exception as error:
            raise LearnerError(f"{learner} failed for {client}: {type(error).__name__}: {error}") from error
        if lacking := [name for name in ("initial", "train") if not callable(getattr(made, name, None))]:
            raise LearnerError(
                f"{learner} must return a learner for {client}, such as torch_learner(…), got {type(made).__name__} "
                f"without {' and '.join(lacking)}"
            )
        return made

    return make


def make_learners(config: Config) -> dict[str, Learner]:
    """The learners of all clients, made one after the other."""
    make = find_maker(config)
    return {name: make(config, name) for name in config.names}


def digest_of_file(config: Config) -> str:
    """A digest of the file with a configuration's learner; empty if there is none.

    The file is not imported; the package that it is in, if any, is.
    """
    if config.learner in ("", PASSED):
        return ""
    with suppress(ImportError, ValueError, OSError):
        spec = importlib.util.find_spec(config.learner.partition(":")[0])
        if spec is not None and spec.origin is not None:
            return sha256(Path(spec.origin).read_bytes()).hexdigest()
    return ""


def save_model(learner: Learner, path: Path, weights: Vector) -> None:
    """Write a final model to `path` with the learner's own `save`, or next to it as a numpy vector (.npy)."""
    save = getattr(learner, "save", None)
    if save is None:
        write_whole(path.with_suffix(".npy"), lambda file: np.save(file, weights))
        return
    try:
        save(path, weights)
    except Exception as error:  # the run is over; its checkpoint is kept if this raises
        raise LearnerError(f"saving the model as {path} failed: {type(error).__name__}: {error}") from error
