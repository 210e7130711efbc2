"""A hostile server of a Flower app under `protect()`: what it may put into messages, and what it learns from them."""

from contextlib import suppress

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from test_flower_drop_in import Site

from flower_grid import Grid, fit
from paraaegis.errors import ParaAegisError
from paraaegis.flower import protect
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
