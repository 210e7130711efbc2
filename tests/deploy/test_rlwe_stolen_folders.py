"""Nodes under RLWE: what stolen folders and all recorded traffic give, and what is kept on disk."""

import itertools
import json
import logging
import shutil
from contextlib import suppress

import msgspec
import numpy as np
import pytest

from masked import WIDE, inside
from nodes import Nodes, secrets_of
from paraaegis.crypto import rlwe
from paraaegis.crypto.kdf import derive
from paraaegis.crypto.keys import load_identity, load_keys
from paraaegis.crypto.ratchet import Ratchet
from paraaegis.crypto.sealed_box import unseal
from paraaegis.crypto.shamir import rebuild
from paraaegis.errors import CryptoError, ProtocolError
from paraaegis.protocol.messages import ShareSum, Survivors, Upload
from paraaegis.protocol.rows import open_row, unpack_row
from paraaegis.protocol.sums import public_seed
from paraaegis.types import Payload

RLWE = ("protect.cipher=rlwe", "federation.rounds=4", "federation.quorum=5")
METHODS = ("ckks-fedavg", "paraaegis-feedback")
each_method = pytest.mark.parametrize("method", METHODS)
STOLEN = 2  # the folders are copied in the round after this one


class Robbery:
    """A federation, its traffic, and copies of all folders, made when every client had uploaded in round 3."""

    def __init__(self, out, method):
        self.nodes = Nodes(out / "federation", method, 5, *RLWE)
        self.copies = {name: out / "copies" / name for name in self.nodes.folders}
        self.nodes.serve(self._meddle)

    def _meddle(self, _name, message, answered):
        due = isinstance(message, Survivors) and message.round_id.number == STOLEN + 1
        if due and not any(copy.exists() for copy in self.copies.values()):
            for name, copy in self.copies.items():
                shutil.copytree(self.nodes.folders[name], copy)
        return answered()

    def uploads(self, number):
        """Each client's last message with values in a round."""
        return {
            name: reply
            for name, _, reply in self.nodes.traffic
            if isinstance(reply, Upload) and reply.round_id.number == number
        }

    def rows(self, number):
        names = list(self.nodes.folders)
        return {
            names.index(name): bytes(reply.row.view)
            for name, _, reply in self.nodes.traffic
            if isinstance(reply, ShareSum) and reply.round_id.number == number
        }

    def held(self, name):
        """The keys in a stolen folder."""
        (path,) = self.copies[name].glob("runs/*/manifest.json")
        return Ratchet.decoded(json.loads(path.read_text())["values"]["state/held"])

    def shares(self, thieves, victim, number, step):
        """The shares of a client's secret that stolen folders give: those sealed to their owners."""
        names, found = list(self.nodes.folders), {}
        for thief in thieves:
            copy = self.copies[thief]
            if thief == victim:
                for path in copy.glob("runs/*/*state-share.npy"):
                    found[names.index(thief)] = np.load(path)
                continue
            private, roster = load_identity(copy / "identity")[0], load_keys(copy / "keys").roster
            box = bytes(self.uploads(number)[victim].shares[thief].view)
            for view in self.nodes.views:
                content = [self.nodes.state.run, victim, thief, "share", number, 0, view]
                with suppress(CryptoError):
                    row = unseal(
                        private, roster[victim], box, msgspec.msgpack.encode(content), group=derive(step, "shares")
                    )
                    found[names.index(thief)] = unpack_row(row, rlwe.SECRET, rlwe.FIELD)
        return found

    def opens(self, number, payload, secret, clients):
        chunk = inside(payload)
        seed = public_seed(self.nodes.parameters().round_id(number))
        return rlwe.decrypt(WIDE, chunk.chunks, chunk.length, secret, seed, clients)


@pytest.fixture(scope="module")
def robberies(tmp_path_factory):
    return {method: Robbery(tmp_path_factory.mktemp("robbed"), method) for method in METHODS}


@each_method
def test_a_past_sum_stays_closed_to_a_stolen_folder(robberies, method):
    robbed = robberies[method]
    held = robbed.held("client-1")
    candidates = {*secrets_of(robbed.copies["client-1"]), *(held.at(n, a).step for n in (3, 4) for a in range(3))}
    for number in range(1, STOLEN + 1):
        with pytest.raises(ProtocolError, match="have been erased"):
            held.at(number, 0)
        for key, (holder, row) in itertools.product(sorted(candidates)[::10], list(robbed.rows(number).items())[:1]):
            with pytest.raises(CryptoError):
                open_row(row, key, holder, rlwe.SECRET, rlwe.FIELD)


@each_method
def test_a_stolen_folder_opens_the_sum_of_its_round_and_no_upload(robberies, method):
    """Every client can open the sum. So can who steals its folder; but not one upload by itself."""
    robbed, number = robberies[method], STOLEN + 1
    step = robbed.held("client-1").at(number, 0).step
    rows = {holder: open_row(row, step, holder, rlwe.SECRET, rlwe.FIELD) for holder, row in robbed.rows(number).items()}
    secret = rebuild(rows, 5)
    total = rlwe.RlweSum(WIDE, inside(robbed.uploads(number)["client-0"].payload).length)
    for upload in robbed.uploads(number).values():
        total.add(inside(upload.payload).chunks)
    sums = robbed.opens(number, Payload("rlwe", total.length, total.close()), secret, 5)
    assert 0 < np.abs(sums).max() < 2**24
    for upload in robbed.uploads(number).values():
        with pytest.raises(CryptoError):
            robbed.opens(number, upload.payload, secret, 5)


@each_method
@pytest.mark.parametrize("thieves", [1, 4, 5])
def test_an_upload_opens_with_a_quorum_of_folders_stolen_in_its_round_and_not_with_fewer(robberies, method, thieves):
    robbed, number, names = robberies[method], STOLEN + 1, list(robberies[method].nodes.folders)
    step = robbed.held("client-1").at(number, 0).step
    shares = robbed.shares(names[:thieves], "client-0", number, step)
    assert len(shares) == thieves
    upload = robbed.uploads(number)["client-0"].payload
    if thieves < 5:
        with pytest.raises(CryptoError, match="5 shares are needed"):
            rebuild(shares, 5)
        with pytest.raises(CryptoError):
            robbed.opens(number, upload, rebuild(shares, thieves), 1)
        return
    assert np.abs(robbed.opens(number, upload, rebuild(shares, 5), 1)).max() > 0


@each_method
def test_shares_of_past_rounds_stay_sealed_even_with_every_folder(robberies, method):
    robbed, names = robberies[method], list(robberies[method].nodes.folders)
    held = robbed.held("client-1")
    for number in range(1, STOLEN + 1):
        for step in (held.at(STOLEN + 1, 0).step, held.at(STOLEN + 2, 0).step):
            assert not robbed.shares(names[1:], "client-0", number, step)


@each_method
def test_a_share_is_on_disk_only_between_upload_and_its_request(robberies, method):
    robbed = robberies[method]
    for name, copy in robbed.copies.items():
        assert len(list(copy.glob("runs/*/*state-share.npy"))) == 1
        assert not list(robbed.nodes.folders[name].rglob("*share*"))


def test_a_share_is_gone_from_the_folder_as_soon_as_it_was_given_out(tmp_path):
    nodes, seen = Nodes(tmp_path, "paraaegis-feedback", 5, *RLWE), {}

    def meddle(name, message, answered):
        reply = answered()
        kind = type(message).__name__
        seen.setdefault(kind, set()).add(len(list(nodes.folders[name].rglob("*share*"))))
        return reply

    nodes.serve(meddle)
    assert seen["Elected"] == {1}
    assert seen["Survivors"] == seen["Begin"] == seen["Finish"] == {0}


def test_nothing_secret_is_logged(tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    nodes = Nodes(tmp_path, "ckks-fedavg", 5, *RLWE)
    nodes.serve()
    assert "Survivors answered with ShareSum" in caplog.text
    assert "array" not in caplog.text
    assert max(len(record.getMessage()) for record in caplog.records) < 200
