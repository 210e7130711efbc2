"""A node that is killed at any write loses no run and keeps no old key."""

import itertools
from contextlib import suppress

import pytest

from nodes import Nodes, secrets_of
from paraaegis import files
from paraaegis.crypto.keys import load_keys
from paraaegis.errors import ProtocolError


class KilledError(Exception):
    """A node's process is gone."""


@pytest.mark.parametrize("method", ["ckks-fedavg", "paraaegis-feedback"])
def test_a_kill_at_any_write_loses_no_run_and_keeps_no_old_key(method, tmp_path, monkeypatch):
    """A node is killed before or after it moves a file to its place; it is asked again, and the run ends well."""
    real, writes, kills = files.write_whole, itertools.count(), []

    def killed(path, write, mode=0o644):
        due = path.name == "keys" if len(kills) < 4 else next(writes) % 4 == 3
        if due and len(kills) < 8:
            kills.append(path.name)
            if len(kills) % 2 == 0:
                real(path, write, mode)
            raise KilledError
        real(path, write, mode)

    nodes = Nodes(tmp_path, method, 2, "federation.quorum=1", "federation.rounds=6")
    for module in ("crypto.keys", "deploy.store", "deploy.node"):
        monkeypatch.setattr(f"paraaegis.{module}.write_whole", killed)
    root = load_keys(nodes.folders["client-1"] / "keys").root

    def again(name, message, answered):
        try:
            return answered()
        except KilledError:
            return None

    for _ in range(9):  # "not everyone joined", where the kill came at the roll call
        with suppress(ProtocolError):
            nodes.serve(again)
            break
    assert {"keys", "manifest.json"} <= set(kills)
    assert len(kills) == 8
    assert len(nodes.lines) == 6
    for folder in nodes.folders.values():
        assert root.secret not in secrets_of(folder)
