"""Nodes under RLWE that are killed at any write: nothing is masked or given out twice."""

import itertools
from contextlib import suppress

import numpy as np
import pytest

from nodes import Nodes
from paraaegis import files
from paraaegis.errors import ProtocolError
from paraaegis.protocol.messages import Begin, Survivors, Upload


class KilledError(Exception):
    """A node's process is gone."""


@pytest.mark.parametrize("method", ["ckks-fedavg", "paraaegis-feedback"])
def test_a_kill_at_any_write_masks_nothing_twice_and_ends_with_one_model(method, tmp_path, monkeypatch):
    """A node dies before or after it moves its state to its place. A round it was lost in is void or stands."""
    real, writes, kills, given = files.write_whole, itertools.count(), [], []

    def killed(path, write, mode=0o644):
        if path.name == "manifest.json" and next(writes) % 9 == 8 and len(kills) < 8:
            kills.append(path)
            if len(kills) % 2 == 0:
                real(path, write, mode)
            raise KilledError
        real(path, write, mode)

    monkeypatch.setattr("paraaegis.deploy.store.write_whole", killed)
    nodes = Nodes(tmp_path, method, 6, "protect.cipher=rlwe", "federation.rounds=6", "federation.quorum=4")

    def again(name, message, answered):
        try:
            reply = answered()
        except KilledError:
            return None
        if isinstance(message, Survivors):
            given.append((name, message.round_id.number))
        return reply

    for _ in range(9):
        with suppress(ProtocolError):
            nodes.serve(again)
            break
    assert len(kills) == 8
    assert len(nodes.lines) == 6
    assert any(line.clients for line in nodes.lines)
    assert len(given) == len(set(given))
    first, *others = nodes.models()
    assert all(np.array_equal(first, model) for model in others)
    begun = [(n, m.round_id) for n, m, r in nodes.traffic if isinstance(m, Begin) and isinstance(r, Upload)]
    assert len(begun) == len(set(begun))
