"""Flower apps and strategies that do unusual things, under `protect()` and `ParaAegis`."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg

from flower_grid import Grid, first_model, fit
from flower_site import ALL, PATIENCE, ROUNDS, Site, arrays, replies
from paraaegis.engines.flower.arrays import to_arrays, to_vector
from paraaegis.errors import ConfigError, ParaAegisError
from paraaegis.flower import ParaAegis, protect


def test_a_node_with_a_folder_does_not_take_part_in_a_simulation(tmp_path):
    site = Site(tmp_path)
    site.grid = Grid([protect(simulate=True)], [{"paraaegis": str(folder)} for folder in site.folders])
    with pytest.raises(ParaAegisError, match="did not connect"):
        site.start()
    assert {"remove simulate=True" in content["error"]["text"] for _, _, content in replies(site)} == {True}
    assert site.grid.trained == []


def test_a_model_is_not_evaluated_while_too_few_nodes_are_connected(tmp_path):
    site = Site(tmp_path, quorum=3, clients=4)

    def leaving(number, _arrays):
        site.grid.away = {4} if number == 1 else set()
        return MetricRecord({"number": number})

    given = {"min_train_nodes": 2, "min_available_nodes": 2, "min_evaluate_nodes": 4}
    result = site.start(FedAvg(**given), evaluate_fn=leaving)
    assert sorted(result.evaluate_metrics_clientapp) == [1, 3]


def test_a_strategy_configures_no_round_beyond_the_last(tmp_path):
    configured = []

    class Scheduled(FedAvg):
        def configure_train(self, server_round, arrays, config, grid):
            configured.append(server_round)
            return super().configure_train(server_round, arrays, config, grid)

    Site(tmp_path).start(Scheduled(**ALL))
    assert configured == list(range(1, ROUNDS + 1))


def test_a_function_that_aggregates_metrics_of_training_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="metrics of training never leave a node"):
        Site(tmp_path).strategy(FedAvg(train_metrics_aggr_fn=lambda _contents, _key: MetricRecord()))


ODD = {
    "no metrics": RecordDict(),
    "two records": RecordDict({name: MetricRecord({"size": 1.0, "num-examples": 1}) for name in "ab"}),
    "no examples": RecordDict({"metrics": MetricRecord({"size": 1.0})}),
    "a list of examples": RecordDict({"metrics": MetricRecord({"size": 1.0, "num-examples": [1]})}),
    "minus one example": RecordDict({"metrics": MetricRecord({"size": 1.0, "num-examples": -1})}),
}


@pytest.mark.parametrize("odd", ODD)
def test_a_node_that_answers_an_evaluation_oddly_is_left_out(odd, tmp_path):
    site = Site(tmp_path)
    answer = site.grid._answer

    def answered(message):
        reply = answer(message)
        if message.metadata.message_type == "evaluate" and message.metadata.dst_node_id == 2:
            reply.content = ODD[odd]
        return reply

    site.grid._answer = answered
    result = site.start()
    assert sorted(result.evaluate_metrics_clientapp) == [1, 2, 3]
    assert result.evaluate_metrics_clientapp[3]["size"] > 2


def test_arrays_of_any_shape_and_floating_type_travel():
    like = {
        "scale": np.array(0.5, dtype=np.float32),
        "scale.running_var": np.array(0.5, dtype=np.float32),
        "none": np.empty((0, 3), dtype=np.float32),
        "half": np.ones(2, dtype=np.float16),
        "double": np.ones((2, 1)),
        "mask": np.ones(3, dtype=bool),
    }
    record = ArrayRecord({name: Array(array) for name, array in like.items()})
    made = to_arrays(to_vector(record) - 1, record)
    assert {name: (array.shape, array.dtype) for name, array in made.items()} == {
        name: (array.shape, array.dtype) for name, array in record.items()
    }
    assert made["scale.running_var"].numpy() == 0
    assert made["scale"].numpy() == -0.5


def test_an_app_may_change_the_message_that_it_gets(tmp_path):
    def changing(message, context):
        content = fit(message, context)
        message.content["config"]["lr"] = 0.0
        message.content["arrays"].clear()
        return content

    site = Site(tmp_path, fit=changing)
    site.start()
    assert sorted(site.grid.trained) == [(node, number) for node in (1, 2, 3) for number in (1, 2, 3)]


def test_a_new_run_with_other_settings_may_train_on_another_number_of_examples(tmp_path):
    def sampling(message, context):
        content = fit(message, context)
        content["metrics"]["num-examples"] = int(100 * message.content["config"]["lr"])
        return content

    site = Site(tmp_path, fit=sampling)
    site.start()
    again = ParaAegis(FedAvg(**ALL), site.path, folder=tmp_path / "again")
    again.start(site.grid, first_model(), timeout=PATIENCE, train_config=ConfigRecord({"lr": 0.25}))
    assert [len(line.clients) for line in again.folder.read_records()] == [3] * ROUNDS


def returning(kind):
    def casting(message, context):
        content = fit(message, context)
        content["arrays"] = ArrayRecord(
            {name: Array(each.numpy().astype(kind)) for name, each in content["arrays"].items()}
        )
        return content

    return casting


def test_an_app_may_return_another_floating_type(tmp_path):
    expected, found = (arrays(Site(tmp_path / kind, fit=returning(kind)).start()) for kind in ("float32", "float64"))
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, atol=1e-5)
