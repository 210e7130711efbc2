"""What people rely on to know what was spent and told: under any name, after any accident."""

from contextlib import suppress
from dataclasses import replace

import msgspec
import pytest

from blobs import SAMPLES
from hand import federation
from nodes import Nodes
from paraaegis.config import make_config
from paraaegis.crypto.keys import load_keys, save_keys
from paraaegis.errors import ConfigError, ProtocolError, RunError
from paraaegis.privacy.budget import budget
from paraaegis.privacy.calibrate import epsilon_of
from paraaegis.privacy.ledger import read_ledger
from paraaegis.protocol.messages import Ballot, Begin, Ended, ReportOnly, RollCall, Upload
from paraaegis.protocol.state import ServerState
from paraaegis.runs.assemble import short_name
from paraaegis.runs.folder import RunFolder, write_config
from paraaegis.runs.guarantees import run_guarantees, spending

NOISED = ("federation.quorum=3", "federation.rounds=4")


def answers(nodes):
    return [reply for _, _, reply in nodes.traffic]


# The budget


def renamed(nodes, old, new):
    """Two silos swap their numbers, as where one left and another took its place."""
    nodes.folders[old], nodes.folders[new] = nodes.folders[new], nodes.folders[old]
    for folder in nodes.folders.values():
        keys = load_keys(folder / "keys")
        roster = {**keys.roster, old: keys.roster[new], new: keys.roster[old]}
        save_keys(folder / "keys", replace(keys, roster=roster))


def test_a_renamed_silo_has_what_it_spent_before(tmp_path):
    nodes = Nodes(tmp_path, "dp-fedavg", 3, *NOISED)
    nodes.serve()
    assert [len(line.clients) for line in nodes.lines] == [3] * 4
    renamed(nodes, "client-1", "client-2")
    again = Nodes.__new__(Nodes)
    again.__dict__ |= {**nodes.__dict__, "traffic": [], "lines": [], "state": ServerState(run=nodes.state.run + "b")}
    again.serve()
    declined = [reply.declined for reply in answers(again) if isinstance(reply, ReportOnly) and reply.declined]
    assert len(declined) == 3  # all of them: each has spent its budget, whatever it is called
    assert all("privacy budget" in text and "is spent" in text for text in declined)
    assert not any(isinstance(reply, Upload) for reply in answers(again))


def test_privacy_of_a_silos_folder_adds_up_what_it_spent_under_all_names(tmp_path):
    nodes = Nodes(tmp_path, "dp-fedavg", 3, *NOISED)
    nodes.serve()
    folder = nodes.folders["client-1"]
    whole = spending(folder)
    text = (folder / "ledger.jsonl").read_text().splitlines()
    (folder / "ledger.jsonl").write_text(
        "\n".join(line.replace("client-1", "client-2") if '"round":1' in line else line for line in text) + "\n"
    )
    assert any(release.client == "client-2" for release in read_ledger(folder / "ledger.jsonl"))
    assert spending(folder).spent.share_of_budget == pytest.approx(whole.spent.share_of_budget)
    assert spending(folder).spent.share_of_budget == pytest.approx(1.0)
    assert spending(folder).guarantees[0].epsilon == pytest.approx(whole.guarantees[0].epsilon)
    limit = budget(nodes.config).limit
    assert whole.guarantees[0].epsilon == pytest.approx(epsilon_of(limit**0.5, 1e-5), rel=1e-3)


def test_privacy_of_the_servers_folder_says_that_ledgers_are_at_the_silos(tmp_path):
    nodes = Nodes(tmp_path, "dp-fedavg", 3, *NOISED)
    nodes.serve()
    server = RunFolder(tmp_path / "server")
    server.path.mkdir()
    write_config(server.config, nodes.config)
    for record in nodes.lines:
        server.append(record)
    with pytest.raises(RunError, match=r"each silo keeps the ledger .* run `paraaegis privacy` on a silo's folder"):
        spending(server.path)


@pytest.mark.parametrize("gone", ["deleted", "emptied", "older"])
def test_a_silo_that_took_part_does_not_start_without_its_ledger(tmp_path, gone):
    nodes = Nodes(tmp_path, "dp-fedavg", 2, "federation.quorum=2", "federation.rounds=2")
    nodes.serve()
    ledger = nodes.folders["client-1"] / "ledger.jsonl"
    kept = ledger.read_bytes()
    older = b"".join(kept.splitlines(keepends=True)[:-1])
    ledger.unlink() if gone == "deleted" else ledger.write_bytes(older if gone == "older" else b"")
    call = RollCall(round_id=nodes.parameters(nodes.state.run + "b").round_id(0))
    with pytest.raises(RunError, match=r"ledger.jsonl is missing, truncated or outdated: a run of client-1 left"):
        nodes.ask("client-1", call)
    ledger.write_bytes(kept)
    nodes.ask("client-1", call)


# Attempts


@pytest.mark.parametrize("method", ["paraaegis-static", "paraaegis-feedback", "ckks-fedavg"])
def test_attempts_of_a_round_are_limited(method):
    playing, _ = federation(method, 3, 60, "protect.ratio=0.2")
    replies = [playing.send("client-0", playing.begin(1, attempt=attempt)) for attempt in range(200)]
    kinds = [type(reply) for reply in replies]
    assert kinds == [Upload if method == "ckks-fedavg" else Ballot] * 3 + [ReportOnly] * 197
    assert "has trained 3 times on this state of the model" in replies[-1].declined
    recorded = [one for one in playing.silos["client-0"].ledger.releases if one.client == "client-0"]
    kind = "votes" if playing.federation.server.votes else "update"
    assert [one.attempt for one in recorded if one.what == kind] == [0, 1, 2]


def test_void_rounds_count_as_attempts_and_a_round_that_stands_ends_the_count():
    playing, _ = federation("ckks-fedavg", 3, 60, rounds=8)
    past = []
    for number in (1, 2, 3):
        past = [playing.round(number, *past, counted=[])]
    reply = playing.send("client-0", playing.begin(4, *past))
    assert isinstance(reply, ReportOnly)
    assert reply.declined
    fine, _ = federation("ckks-fedavg", 3, 60, rounds=8)
    past = [fine.round(2, fine.round(1, counted=[]), counted=[])]
    for number in range(3, 8):
        past = [fine.round(number, *past)]
    assert {state.applied for state in fine.states.values()} == {6}


def test_the_number_of_attempts_is_a_key():
    playing, _ = federation("ckks-fedavg", 3, 60, "privacy.attempts=1")
    assert isinstance(playing.send("client-0", playing.begin(1)), Upload)
    assert playing.send("client-0", playing.begin(1, attempt=1)).declined
    with pytest.raises(ConfigError, match=r"privacy.attempts"):
        federation("ckks-fedavg", 3, 60, "privacy.attempts=0")


# Metrics and seconds


@pytest.mark.parametrize("shared", [(), ("metrics",), ("seconds",), ("metrics", "seconds")])
def test_metrics_and_seconds_leave_a_silo_only_where_it_says_so(tmp_path, shared):
    settings = [f"engine.share_{name}=true" for name in shared]
    nodes = Nodes(
        tmp_path, "fedavg", 2, "privacy.noise=secret", "federation.quorum=2", "federation.rounds=2", *settings
    )
    nodes.serve()
    reports = [reply.report for reply in answers(nodes) if isinstance(reply, Upload | ReportOnly)]
    assert any(report.metrics for report in reports) == ("metrics" in shared)
    assert any(report.seconds for report in reports) == ("seconds" in shared)
    told = {release.what for release in read_ledger(nodes.folders["client-0"] / "ledger.jsonl")}
    assert told & {"metrics", "seconds"} == {*shared}
    lines = (nodes.folders["client-0"] / "metrics.jsonl").read_bytes().splitlines()
    kept = [msgspec.json.decode(line) for line in lines]
    assert [line["round"] for line in kept] == [1, 2]  # for its own people
    assert all(0 <= line["metrics"]["accuracy"] <= 1 for line in kept)


@pytest.mark.parametrize("shared", [False, True])
def test_privacy_of_a_configuration_counts_what_is_told_besides_the_values(shared):
    settings = [f"engine.share_metrics={str(shared).lower()}", f"engine.share_seconds={str(shared).lower()}"]
    found = run_guarantees(make_config({}, ["protect.method=dp-fedavg", "federation.min_samples=90", *settings]))
    server, clients, *_ = found.guarantees
    assert ("its metrics on its own hold-out data" in server.why) is shared
    assert ("how long it trained" in server.why) is shared
    assert "its number of samples" in server.why
    assert "they also learn its number of samples" in clients.why


def test_uniform_weights_tell_nobody_a_count():
    found = run_guarantees(make_config({}, ["protect.method=dp-fedavg", "federation.min_samples=90",
                                     "federation.weights=uniform"]))  # fmt: skip
    assert not any("number of samples" in one.why for one in found.guarantees)


# What a server tries in order to be answered more often


def test_a_peers_model_does_not_give_a_client_new_attempts():
    playing, _ = federation("paraaegis-feedback", 3, 60, "protect.ratio=0.2")
    kinds = []
    for attempt in range(10):
        sealed = playing.peek("client-1", 1, "client-0").sealed["client-0"]
        rescue = playing.rescue(0, "client-1", sealed, "client-0")
        kinds.append(type(playing.send("client-0", playing.begin(1, attempt=attempt, rescue=rescue))))
    assert kinds == [Ballot] * 3 + [ReportOnly] * 7


def test_attempts_are_counted_over_all_runs_that_begin_with_one_model(tmp_path):
    nodes = Nodes(tmp_path, "paraaegis-feedback", 2, "federation.quorum=2", "federation.rounds=1")
    ballots = 0
    for number in range(5):
        nodes.state = ServerState(run=f"{short_name(nodes.config)}-{number}")
        nodes.traffic.clear()
        with suppress(ProtocolError):
            nodes.serve()
        ballots += sum(isinstance(reply, Ballot) for reply in answers(nodes))
    assert ballots == 2 * 3


def test_a_run_that_ended_at_a_failed_check_counts_as_taken_part_in(tmp_path):
    nodes = Nodes(tmp_path, "ckks-fedavg", 2, "federation.quorum=2", "federation.rounds=2")
    nodes.ask("client-0", RollCall(round_id=nodes.parameters().round_id(0)))
    counts = {"counts": {"client-0": SAMPLES, "client-1": SAMPLES}, "proofs": {"client-1": bytes(16)}}
    assert isinstance(
        nodes.ask("client-0", Begin(round_id=nodes.parameters().round_id(1), aggregates=(), **counts)), Ended
    )
    (nodes.folders["client-0"] / "ledger.jsonl").unlink()
    with pytest.raises(RunError, match="is missing, truncated or outdated"):
        nodes.ask("client-0", RollCall(round_id=nodes.parameters(nodes.state.run + "b").round_id(0)))
