"""An existing Flower app under `protect()` and `ParaAegis`: what it computes, and what leaves its nodes."""

from contextlib import suppress

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAdam, FedAvg, FedMedian, Krum, QFedAvg

from flower_grid import SHAPES, Grid, first_model, fit, trained, update
from flower_site import ALL, INNER, PATIENCE, ROUNDS, Site, arrays, replies
from paraaegis.errors import ConfigError, ParaAegisError, RunError
from paraaegis.flower import ParaAegis, protect
from paraaegis.privacy.ledger import read_ledger
from paraaegis.runs.folder import RunFolder
from paraaegis.runs.guarantees import spending


@pytest.fixture
def site(tmp_path, monkeypatch):
    monkeypatch.setattr("paraaegis.engines.flower.server.POLL", 0.0)
    return Site(tmp_path)


# What is computed


@pytest.mark.parametrize("name", INNER)
def test_an_inner_strategy_makes_of_the_whole_update_what_it_makes_without_protection(name, site):
    plain = INNER[name]().start(Grid([], [{}] * 3), first_model(), ROUNDS, train_config=ConfigRecord({"lr": 0.5}))
    found, expected = arrays(site.start(INNER[name]())), arrays(plain)
    for array in SHAPES:
        np.testing.assert_allclose(found[array], expected[array], rtol=1e-6, atol=2**-20)
        assert found[array].dtype == np.float32
        assert np.abs(found[array] - 0.5).max() > 0.01


def test_integers_stay_as_they_are_and_variances_never_fall_below_zero(tmp_path, monkeypatch):
    def shrinking(message, context):
        content = fit(message, context)
        content["arrays"]["norm.running_var"] = type(content["arrays"]["norm.running_var"])(np.full(3, -9, np.float32))
        return content

    monkeypatch.setattr("paraaegis.engines.flower.server.POLL", 0.0)
    found = arrays(Site(tmp_path, fit=shrinking).start())
    assert found["batches"].dtype == np.int64
    assert found["batches"] == 7
    np.testing.assert_array_equal(found["norm.running_var"], np.zeros(3))


def test_the_app_trains_once_per_round_from_the_servers_model(site):
    site.start(INNER["FedAdam"]())
    assert sorted(site.grid.trained) == [(node, number) for node in (1, 2, 3) for number in (1, 2, 3)]


def test_the_apps_function_gets_the_strategys_settings_and_nothing_of_ours(tmp_path):
    got = []

    def spying(message, context):
        got.append((sorted(message.content), dict(message.content["config"])))
        return fit(message, context)

    Site(tmp_path, fit=spying).start(INNER["FedProx"]())
    expected = {"lr": 0.5, "server-round": 1, "proximal-mu": 0.1}
    assert got[0] == (["arrays", "config"], expected)


def test_a_run_that_was_interrupted_continues_with_what_the_strategy_remembers(tmp_path):
    whole, broken = Site(tmp_path / "whole"), Site(tmp_path / "broken")
    expected = arrays(whole.start(INNER["FedAdam"]()))

    def failing(number, _arrays):
        if number == 2:
            raise KeyboardInterrupt
        return

    with pytest.raises(KeyboardInterrupt):
        broken.start(INNER["FedAdam"](), evaluate_fn=failing)
    found = arrays(broken.start(INNER["FedAdam"]()))
    for name in SHAPES:
        np.testing.assert_allclose(found[name], expected[name], atol=1e-5)


def test_a_node_that_missed_two_rounds_gets_a_peers_model_and_trains_on(tmp_path):
    site = Site(tmp_path, quorum=3, rounds=5, clients=4)

    def leaving(number, _arrays):
        site.grid.away = {4} if number in (1, 2) else set()
        return MetricRecord({"number": number})

    strategy = site.strategy(FedAdam())
    strategy.start(site.grid, first_model(), timeout=PATIENCE, evaluate_fn=leaving)
    lines = RunFolder(site.out / "run").read_records()
    assert [len(line.clients) for line in lines] == [4, 3, 3, 3, 4]


def test_nodes_that_a_round_does_not_draw_take_part_in_the_next(tmp_path):
    site = Site(tmp_path, quorum=3, rounds=5, clients=4)
    for path in (site.path, *(folder / "config.toml" for folder in site.folders)):
        path.write_text(path.read_text().replace("[federation]", "[federation]\nfraction = 0.75"))
    site.strategy(FedAdam()).start(site.grid, first_model(), timeout=PATIENCE)
    lines = RunFolder(site.out / "run").read_records()
    assert [len(line.clients) for line in lines] == [3] * 5
    assert len({tuple(line.clients) for line in lines}) > 1
    assert all(not line.dropped for line in lines)


# What leaves a node


def everything(content):
    """All bytes of a reply, and all its numbers."""
    for record in content.array_records.values():
        for array in record.values():
            yield array.data
    for record in content.config_records.values():
        for value in record.values():
            yield value if isinstance(value, bytes) else str(value).encode()


def test_no_reply_holds_an_update_a_model_or_a_metric_that_is_not_allowed(tmp_path):
    site = Site(tmp_path, ratio=0.2, share="false")
    site.start()
    for node, sent, content in replies(site):
        if sent.metadata.message_type == "evaluate":
            assert {name: dict(record) for name, record in content.items()} == {"metrics": {"num-examples": 10}}
            continue
        assert not content.metric_records
        assert set(content) <= {"who", "paraaegis:frames"}
        whole = b"".join(everything(content))
        assert b"loss" not in whole
        for number in range(1, ROUNDS + 1):
            for name in SHAPES:
                for array in (update(node - 1, number, name), trained(first_model(), node - 1, number)[name].numpy()):
                    assert all(array.ravel()[i : i + 1].tobytes() not in whole for i in range(array.size))


def test_metrics_that_the_node_allows_are_aggregated_recorded_and_in_its_ledger(site):
    result = site.start(evaluate_fn=lambda number, _: MetricRecord({"central": float(number)}))
    assert sorted(result.evaluate_metrics_clientapp) == [1, 2, 3]
    assert result.evaluate_metrics_serverapp[0]["central"] == 0
    lines = RunFolder(site.out / "run").read_records()
    assert [set(line.metrics) for line in lines] == [{"size", "central"}] * ROUNDS
    released = [release.round for release in read_ledger(site.folders[0] / "ledger.jsonl") if release.what == "metrics"]
    assert released == [1, 2, 3]


def test_the_metrics_of_training_stay_on_the_node(site):
    site.start()
    kept = (site.folders[1] / "metrics.jsonl").read_text()
    assert '"train_loss":1.25' in kept


WRONG = {
    "two models": lambda content: content.update({"more": first_model()}),
    "no model": lambda content: content.pop("arrays"),
    "a ConfigRecord": lambda content: content.update({"note": ConfigRecord({"secret": "patient 7"})}),
    "no examples": lambda content: content["metrics"].pop("num-examples"),
    "half an example": lambda content: content["metrics"].update({"num-examples": 0.5}),
    "another shape": lambda content: content["arrays"].pop("layer.bias"),
    "NaN": lambda content: content["arrays"].update({
        "layer.bias": type(content["arrays"]["layer.bias"])(np.full(5, np.nan, np.float32))
    }),
}  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
def test_what_the_apps_function_returns_wrongly_stays_on_the_node(wrong, tmp_path):
    def returning(message, context):
        content = fit(message, context)
        WRONG[wrong](content)
        return content

    site = Site(tmp_path, fit=returning)
    with suppress(ParaAegisError):  # NaN is noticed when an upload is made: rounds without one are void
        site.start()
    assert not RunFolder(site.out / "run").read_records() or wrong == "NaN"
    assert {name for _, _, content in replies(site) for name in content} <= {"error", "who", "paraaegis:frames"}
    assert all(b"patient" not in b"".join(everything(content)) for _, _, content in replies(site))


def test_the_text_of_an_exception_in_the_app_stays_on_the_node(tmp_path, capsys):
    def failing(_message, _context):
        raise ValueError("patient 7 has 38.5")

    site = Site(tmp_path, fit=failing)
    with pytest.raises(ParaAegisError, match="did not connect"):
        site.start()
    assert all(b"patient" not in b"".join(everything(content)) for _, _, content in replies(site))
    assert "patient 7" in capsys.readouterr().err


@pytest.mark.parametrize(("kind", "content"), [
    ("train", RecordDict({"arrays": first_model(), "config": ConfigRecord({"server-round": 1})})),
    ("evaluate", RecordDict({"arrays": first_model(), "config": ConfigRecord({"server-round": 1})})),
    ("query", RecordDict()),
])  # fmt: skip
def test_a_server_without_our_strategy_gets_nothing(kind, content, site):
    (reply,) = site.grid.send_and_receive([Message(content, 1, kind)])
    assert not reply.content.array_records
    assert not reply.content.metric_records
    assert "only" in reply.content["error"]["text"]
    assert site.grid.trained == []


def test_a_server_that_asks_for_less_protection_is_refused_by_every_node(site):
    site.path.write_text(
        site.path.read_text().replace('"paraaegis-feedback"', '"paraaegis-feedback"\nstrategy = "min"')
    )
    with pytest.raises(ParaAegisError, match="uses a different configuration from this silo's"):
        site.start()


def test_what_may_not_be_evaluated_is_refused_by_name(tmp_path):
    def telling(message, context):
        return RecordDict({"metrics": MetricRecord({"num-examples": 3}), "examples": first_model()})

    site = Site(tmp_path, test=telling)
    result = site.start()
    assert not result.evaluate_metrics_clientapp
    texts = {reply["error"]["text"] for _, sent, reply in replies(site) if sent.metadata.message_type == "evaluate"}
    assert texts == {"it failed; see its node's log for the reason"}


# What is refused


@pytest.mark.parametrize("inner", [Krum, FedMedian, QFedAvg], ids=lambda each: each.__name__)
def test_a_strategy_that_needs_single_updates_is_refused_with_the_reason(inner, site):
    given = {"client_learning_rate": 0.1} if inner is QFedAvg else {}
    with pytest.raises(ConfigError, match=rf"{inner.__name__} needs every client's own update, which nobody sees here"):
        site.strategy(inner(**given))


def test_a_users_own_subclass_of_an_allowed_strategy_is_allowed(site):
    class Saving(FedAvg):
        def aggregate_train(self, server_round, replies):
            self.saved = server_round
            return super().aggregate_train(server_round, replies)

    inner = Saving(**ALL)
    site.start(inner)
    assert inner.saved == ROUNDS


@pytest.mark.parametrize(("given", "message"), [
    ({"fraction_train": 0.5}, "clients are drawn by federation.fraction"),
    ({"weighted_by_key": "weight"}, "clients are weighted by 'num-examples'"),
    ({"min_available_nodes": 4}, "waits for 4 nodes, but federation.clients is 3"),
])  # fmt: skip
def test_settings_of_a_strategy_that_would_be_ignored_are_refused(given, message, site):
    with pytest.raises(ConfigError, match=message):
        site.strategy(FedAvg(**given))


@pytest.mark.parametrize(("old", "new", "message"), [
    ('reveal = "server"', "", r"deploy ParaAegis itself \(docs/deployment.md\)"),
    ("[engine]", "[train]\nserver_lr = 1.5\n[engine]", r"use FedAvgM\(server_learning_rate=1.5\)"),
    ("[federation]", 'learner = "mine:make"\n[federation]', "the app's own function is the learner"),
])  # fmt: skip
def test_a_configuration_that_does_not_fit_is_refused_with_what_to_do(old, new, message, site):
    site.path.write_text(site.path.read_text().replace(old, new))
    with pytest.raises(ConfigError, match=message):
        site.strategy(FedAvg())


def test_another_number_of_rounds_than_the_configurations_is_refused(site):
    with pytest.raises(ConfigError, match=r"num_rounds=50, but federation.rounds is 3"):
        site.strategy(FedAvg()).start(site.grid, first_model(), 50)


def test_a_finished_run_is_not_started_again_in_the_same_folder(site):
    site.start()
    with pytest.raises(RunError, match="holds a finished run; choose another folder"):
        site.start()


def test_a_node_without_its_folder_says_how_to_start_it(tmp_path):
    site = Site(tmp_path)
    del site.grid.contexts[2].node_config["paraaegis"]
    with pytest.raises(ParaAegisError, match="client-1 did not connect"):
        site.start()
    texts = [reply["error"]["text"] for node, _, reply in replies(site) if node == 2]
    assert "--node-config 'paraaegis=" in texts[0]


def test_a_run_that_does_not_start_says_why_each_node_was_skipped(site, caplog):
    for folder in site.folders[:2]:
        (folder / "config.toml").unlink()
    with pytest.raises(ParaAegisError, match=r"client-0, client-1 did not connect .* node 1 was skipped: .*node 2 was"):
        site.start()
    assert caplog.text.count("skipping node 1") == 1
    assert "waiting for client-0, client-1" in caplog.text


def test_an_app_without_the_mod_is_told_apart(tmp_path):
    site = Site(tmp_path)
    site.grid.app = Grid([], [{}] * 3, fit=lambda message, _: message.content, test=None).app
    with pytest.raises(ParaAegisError, match=r"does its ClientApp lack protect\(\)"):
        site.start()


def test_a_quorum_that_leaves_a_node_out_is_warned_of(tmp_path, caplog):
    Site(tmp_path, quorum=3, clients=4).start()
    assert "set federation.quorum = 4" in caplog.text


def test_a_missing_configuration_names_the_places_that_were_searched(tmp_path):
    with pytest.raises(ConfigError, match=r"no configuration at .*absent.toml or .*absent.toml"):
        ParaAegis(FedAvg(), "absent.toml")


# What a user looks at


def test_the_run_can_be_looked_at_afterwards(site, tmp_path):
    strategy = site.strategy(INNER["FedAvg"]())
    strategy.start(site.grid, first_model(), timeout=PATIENCE)
    assert "server" in strategy.privacy_spent().guarantees[0].adversary
    assert not strategy.privacy_spent().simulation
    assert spending(site.folders[0]).lwe_bits == strategy.privacy_spent().lwe_bits == 113
    assert "paraaegis-feedback" in strategy.report(tmp_path / "report.html").read_text()
    with np.load(site.folders[0] / "model.npz") as model:
        assert set(model) == {*SHAPES, "batches"}


# Simulation


class InMemoryGrid(Grid):
    """Named like that of Flower's simulation."""


def test_in_a_simulation_nodes_keep_all_they_know_in_their_context(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    site = Site(tmp_path)
    site.grid = InMemoryGrid([protect(simulate=True)], [{}, {}, {}])
    result = site.start()
    assert sorted(site.grid.trained) == [(node, number) for node in (1, 2, 3) for number in (1, 2, 3)]
    assert np.abs(arrays(result)["layer.weight"] - 0.5).max() > 0.01
    assert set(site.grid.contexts[1].state) == {"paraaegis:files"}
    assert site.last.privacy_spent().simulation
