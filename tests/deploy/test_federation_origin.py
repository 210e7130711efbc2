"""A federation on one machine records where its model came from, as a run in one process does."""

import json
import sys
from hashlib import sha256

import pytest

from paraaegis.config import make_config
from paraaegis.deploy.local_federation import prepare
from paraaegis.deploy.node import DeployedClient
from paraaegis.errors import RunError

CODE = """
import numpy as np
from paraaegis import Learner

class Site(Learner):
    samples = 10

    def initial(self):
        return np.zeros(6, dtype=np.float32)

    def train(self, weights, number):
        return weights

def make(config, client):
    return Site()
"""


class Sites:
    """A module with learners that tests change."""

    def __init__(self, folder, monkeypatch):
        self.file = folder / f"federated_{folder.name.replace('-', '_')}.py"
        self.file.write_text(CODE)
        monkeypatch.syspath_prepend(str(folder))
        monkeypatch.setattr(sys, "dont_write_bytecode", True)

    @property
    def config(self):
        return make_config({}, ["federation.clients=2", f"learner={self.file.stem}:make", "privacy.epsilon=inf"])

    @property
    def digest(self):
        return sha256(self.file.read_bytes()).hexdigest()

    def change(self, old, new):
        self.file.write_text(self.file.read_text().replace(old, new))
        sys.modules.pop(self.file.stem, None)


@pytest.fixture
def sites(tmp_path, monkeypatch):
    made = Sites(tmp_path, monkeypatch)
    yield made
    sys.modules.pop(made.file.stem, None)


def test_the_digests_of_code_and_model_are_in_the_runs_folder(sites, tmp_path):
    folder, _ = prepare(sites.config, tmp_path / "run")
    origin = json.loads(folder.origin.read_text())
    assert (origin["code"], origin["length"]) == ([sites.digest], 6)
    assert origin["samples"] == {"client-0": 10, "client-1": 10}


def test_a_finished_federation_is_not_passed_off_as_that_of_changed_code(sites, tmp_path):
    folder, _ = prepare(sites.config, tmp_path / "run")
    folder.result.write_text("{}")
    sites.change("return weights\n", "return weights + 1\n")
    with pytest.raises(RunError, match=r"the code of .*:make has changed since it finished"):
        prepare(sites.config, tmp_path / "run")


def test_an_unfinished_one_is_not_continued_from_another_first_model(sites, tmp_path):
    prepare(sites.config, tmp_path / "run")
    sites.change("np.zeros(6", "np.ones(6")
    with pytest.raises(RunError, match="its first model had other values"):
        prepare(sites.config, tmp_path / "run")


def test_a_node_keeps_the_digest_of_its_own_code(sites, tmp_path):
    _, nodes = prepare(sites.config, tmp_path / "run")
    DeployedClient("client-0", nodes["client-0"], simulation=True).card()
    assert json.loads((nodes["client-0"] / "facts.json").read_text())["code"] == sites.digest
