"""A silo's node answers each message from what lies in its folder."""

import pytest

from blobs import SAMPLES, make_learner
from paraaegis.config import make_config
from paraaegis.engines.flower.client import answer
from paraaegis.errors import ConfigError, UpdateError
from paraaegis.experiments import node as module
from paraaegis.experiments.node import SiloNode
from paraaegis.experiments.trial import lay_out
from paraaegis.experiments.wire import make_plan, resolve, short_name
from paraaegis.protocol.messages import RollCall, pack, unpack

MATERIALS = module.Materials
NAMES = ("client-0", "client-1")


class Silo:
    """A node's folder, and a node of it for every message, as Flower would make them."""

    def __init__(self, out, *settings):
        base = ["federation.clients=2", f"federation.min_samples={SAMPLES // 2}", "protect.method=ckks-fedavg"]
        self.config = resolve(make_config({}, [*base, *settings]), [SAMPLES])
        self.run = f"{short_name(self.config)}-1"
        self.folder, self.samples, self.read = lay_out(self.config, out)[1]["client-0"], SAMPLES, 0

    def node(self, simulation=True):
        return SiloNode("client-0", self.folder, self._make, holdout=False, simulation=simulation)

    def _make(self, config, name):
        self.read += 1
        learner = make_learner(config, name)
        learner.samples = self.samples
        return learner

    def hello(self):
        where = make_plan(self.config, NAMES, 120, NAMES[:1], self.run).where(0)
        return unpack(answer(self.node(), pack(RollCall(where=where))))


def test_a_node_introduces_itself_with_the_length_of_its_model(tmp_path):
    card = Silo(tmp_path).node().card()
    assert (card["name"], card["length"], card["leads"]) == ("client-0", 120, False)


def test_data_is_counted_anew_at_every_introduction(tmp_path):
    silo = Silo(tmp_path)
    assert silo.hello().weight == SAMPLES
    silo.samples = SAMPLES - 1
    silo.node().card()
    assert silo.hello().weight == SAMPLES - 1


def test_data_that_changed_since_is_not_trained_on(tmp_path):
    silo = Silo(tmp_path)
    silo.node().card()
    silo.samples = SAMPLES - 1
    with silo.node().silo(silo.run) as client, pytest.raises(UpdateError, match="59 samples now and were 60"):
        client.learner.train(client.learner.initial(), 1)


def test_a_run_of_another_configuration_is_refused(tmp_path):
    silo = Silo(tmp_path)
    with pytest.raises(ConfigError, match="of another configuration"), silo.node().silo("0123456789abcdef-1"):
        pass


def test_data_is_not_read_for_a_message_that_does_not_need_it(tmp_path):
    silo = Silo(tmp_path)
    silo.node().card()
    read = silo.read
    with silo.node().silo(silo.run) as client:
        assert client.learner.samples == SAMPLES
    assert silo.read == read


@pytest.mark.parametrize(("worth", "workers"), [(10, 2), (100, 1), (1000, 1)])
def test_processes_are_started_for_as_many_values_as_are_worth_it(tmp_path, monkeypatch, worth, workers):
    monkeypatch.setattr(module, "WORTH", worth)
    silo, found = Silo(tmp_path, "engine.processes=2"), []

    def noted(*given):
        found.append(given[-1])
        return MATERIALS(*given)

    monkeypatch.setattr(module, "Materials", noted)
    with silo.node().silo(silo.run):
        assert found[0].workers == workers


def test_noise_that_can_be_replayed_is_refused_outside_a_simulation(tmp_path):
    with pytest.raises(ConfigError, match="protects nobody"):
        Silo(tmp_path, "privacy.noise=seeded").node(simulation=False).card()
