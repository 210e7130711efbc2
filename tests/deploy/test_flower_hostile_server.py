"""A hostile server of a Flower app under `protect()`: what it may put into messages, and what it learns from them."""

from contextlib import suppress

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from flower_grid import Grid, fit
from flower_site import ROUNDS, Site, arrays
from paraaegis.engines.flower.frames import MARK
from paraaegis.errors import ParaAegisError
from paraaegis.flower import protect
from paraaegis.privacy.ledger import read_ledger
from paraaegis.runs.folder import RunFolder

VICTIM = 3


def learning(message, context):
    """Train at the learning rate of the message, as most of Flower's apps do."""
    content, sent = fit(message, context), message.content
    rate = sent["config"]["lr"] * context.run_config.get("rate", 1.0)
    for name, array in content["arrays"].items():
        before = sent["arrays"][name].numpy()
        content["arrays"][name] = Array(np.asarray(before + rate * (array.numpy() - before)).astype(array.dtype))
    return content


class Lying(Grid):
    """Changes what some nodes are told."""

    def tell(self, node, content):
        """The content of a message with a model to this node."""
        return content

    def _answer(self, message):
        if "arrays" in message.content:
            message.content = self.tell(message.metadata.dst_node_id, RecordDict(dict(message.content)))
        return super()._answer(message)


def tell_rates(node, content):
    content["config"] = ConfigRecord({**content["config"], "lr": 1.0 if node == VICTIM else 0.0})
    return content


def tell_counters(node, content):
    return with_array(content, "batches", np.array(7 if node == VICTIM else 8))


def tell_types(node, content):
    return content if node == VICTIM else with_array(content, "layer.bias", np.full(5, 0.5, dtype=np.float16))


def tell_names(node, content):
    renamed = [("layer.other" if name == "layer.bias" else name, array) for name, array in content["arrays"].items()]
    return content if node == VICTIM else RecordDict({**content, "arrays": ArrayRecord(dict(renamed))})


def tell_models(node, content):
    return content if node == VICTIM else with_array(content, "layer.bias", np.full(5, 0.25, dtype=np.float32))


def tell_more(node, content):
    return content if node == VICTIM else RecordDict({**content, "more": ConfigRecord({"skip": True})})


def with_array(content, name, array):
    return RecordDict({**content, "arrays": ArrayRecord({**content["arrays"], name: Array(array)})})


@pytest.mark.parametrize("tell", [tell_rates, tell_counters, tell_types, tell_names, tell_models, tell_more])
def test_no_sum_is_opened_of_nodes_that_were_told_different_things(tell, tmp_path):
    site = Site(tmp_path, fit=learning)
    site.grid = Lying([protect()], [{"paraaegis": str(folder)} for folder in site.folders], fit=learning)
    site.grid.tell = tell
    with suppress(ParaAegisError):
        site.start()
    assert all(line.clients == [] for line in RunFolder(site.out / "run").read_records())


def test_no_sum_is_opened_of_nodes_whose_run_config_differs(tmp_path):
    site = Site(tmp_path, fit=learning)
    for node, context in site.grid.contexts.items():
        context.run_config = {"rate": float(node == VICTIM)}
    with suppress(ParaAegisError):
        site.start()
    assert all(line.clients == [] for line in RunFolder(site.out / "run").read_records())


def test_an_introduction_with_another_model_in_the_middle_of_a_run_changes_nothing(tmp_path):
    expected, site = arrays(Site(tmp_path / "alone").start()), Site(tmp_path / "asked")

    def asking(number, _arrays):
        if number in (1, 2):
            (_, first, _) = next(line for line in site.grid.wire if "paraaegis:config" in line[1].content)
            content = with_array(RecordDict(dict(first.content)), "layer.bias", np.full(5, 9, dtype=np.float32))
            (reply,) = site.grid.send_and_receive([Message(content, 1, "train")])
            assert set(reply.content) == {"who"}

    found = arrays(site.start(evaluate_fn=asking))
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, atol=2**-20)


def questions(site, *changes):
    """Answers to the last evaluation message to node 1, with these changes of its mark and of its model."""
    (*_, last) = (sent for node, sent, _ in site.grid.wire if node == 1 and sent.metadata.message_type == "evaluate")
    messages = []
    for mark, value in changes:
        content = with_array(RecordDict(dict(last.content)), "layer.bias", np.full(5, value, dtype=np.float32))
        content[MARK] = ConfigRecord({**content[MARK], **mark})
        messages.append(Message(content, 1, "evaluate"))
    return [reply.content for reply in site.grid.send_and_receive(messages)]


def test_a_node_evaluates_one_model_per_round_and_each_is_in_its_ledger(tmp_path):
    site = Site(tmp_path)
    site.start()
    for content in questions(site, ({}, 1.0), ({}, 2.0)):
        assert "already evaluated another model in round 3" in content["error"]["text"]
    released = [each for each in read_ledger(site.folders[0] / "ledger.jsonl") if each.what == "metrics"]
    assert len({each.question for each in released}) == len(released) == ROUNDS


FORGED = {
    "another run": ({"run": "0123456789abcdef-1"}, "has not joined run '0123456789abcdef-1'"),
    "a path": ({"run": "../runs"}, "has not joined run '../runs'"),
    "round 0": ({"round": 0}, "one of the rounds 1 to 3, got 0"),
    "a round too many": ({"round": 4}, "one of the rounds 1 to 3, got 4"),
}


@pytest.mark.parametrize("forged", FORGED)
def test_a_model_of_an_unknown_run_or_round_is_not_evaluated(forged, tmp_path):
    site, (mark, text) = Site(tmp_path), FORGED[forged]
    site.start()
    kept = (site.folders[0] / "metrics.jsonl").read_bytes()
    (content,) = questions(site, (mark, 1.0))
    assert set(content) == {"error"}
    assert text in content["error"]["text"]
    assert (site.folders[0] / "metrics.jsonl").read_bytes() == kept
