"""A trial finds its folder as an earlier one left it, however that ended."""

import os
import shutil
import subprocess
import sys
import time

import pytest

from blobs import SAMPLES
from paraaegis.config import make_config
from paraaegis.deploy.local_federation import gather, lay_out
from paraaegis.engines.flower.processes import FlowerProcesses, sweep
from paraaegis.errors import RunError
from paraaegis.privacy.ledger import Ledger, Release
from paraaegis.protocol.records import RoundRecord
from paraaegis.protocol.state import ServerState
from paraaegis.runs.check import resolve
from paraaegis.runs.result import complete, read_whole


def configured():
    settings = ["federation.clients=2", f"federation.min_samples={SAMPLES}", "privacy.noise=secret"]
    return resolve(make_config({}, settings), [SAMPLES])


def orphan(folder, name):
    environment = os.environ | {"PARAAEGIS_TRIAL": f"{folder.resolve()}:{name}"}
    return subprocess.Popen(["sleep", "300"], env=environment)


def test_what_a_killed_trial_left_running_is_stopped_also_clients_that_are_no_longer_wanted(tmp_path):
    (tmp_path / "lock").touch()
    left = [orphan(tmp_path, name) for name in ("superlink", "client-9")]
    stranger = orphan(tmp_path / "other", "superlink")
    sweep(tmp_path)
    assert [process.wait(timeout=10) for process in left] == [-9, -9]
    assert stranger.poll() is None
    stranger.kill()
    stranger.wait()


def test_a_trial_that_is_running_is_left_alone(tmp_path):
    class Held(FlowerProcesses):
        def _prepare(self):
            with pytest.raises(RunError, match="another trial is running"):
                sweep(tmp_path)
            raise RunError("seen")

    with pytest.raises(RunError, match="seen"), Held(tmp_path, {}):
        pass
    sweep(tmp_path)


def test_a_folder_without_a_trial_has_nothing_to_sweep(tmp_path):
    sweep(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_ledgers_that_were_gathered_do_not_stop_a_run_that_goes_on(tmp_path):
    folder, nodes = lay_out(configured(), tmp_path)
    with folder.claimed(configured(), fresh=False):
        folder.save(ServerState(run="a"), {})
    for node in nodes.values():
        (node / "ledger.jsonl").write_text("")
    gather(folder, nodes)
    assert folder.restore()[0].run == "a"


def test_secrets_are_not_made_anew_for_a_run_that_has_begun(tmp_path):
    _, nodes = lay_out(configured(), tmp_path)
    (nodes["client-0"] / "runs").mkdir()
    (nodes["client-1"] / "identity").unlink()
    with pytest.raises(RunError, match=r"client-1/identity is missing"):
        lay_out(configured(), tmp_path)


def test_flowers_commands_run_in_the_trials_own_folder(tmp_path, monkeypatch):
    """Elsewhere a folder called like the connection would be taken for an app."""
    tool = tmp_path / "flwr"
    tool.write_text('#!/bin/sh\nprintf \'{"success": true, "where": "%s"}\' "$PWD"\n')
    tool.chmod(0o700)
    monkeypatch.setattr("paraaegis.engines.flower.processes._tool", lambda _: str(tool))
    (tmp_path / "here").mkdir()
    assert FlowerProcesses(tmp_path / "here", {}).flwr("list")["where"] == str(tmp_path / "here")


def test_a_trial_that_is_over_keeps_its_ledger_though_its_nodes_are_gone(tmp_path):
    folder, nodes = lay_out(configured(), tmp_path)
    for name, node in nodes.items():
        Ledger(None, node / "ledger.jsonl").record(
            [Release(round=1, client=name, what="update", server="noised", clients="noised", clip=1.0, sigma=1.0)]
        )
    folder.append(RoundRecord(round=1, ratio=0.1, elected=1, clients=list(nodes)))
    gather(folder, nodes)
    complete(configured(), folder, "")
    spent = folder.ledger.read_bytes()
    assert len(spent.splitlines()) == 2
    shutil.rmtree(tmp_path / "nodes")
    folder, nodes = lay_out(configured(), tmp_path)
    assert not (tmp_path / "nodes").exists()
    with pytest.raises(RunError, match="some of the privacy spent is no longer recorded"):
        gather(folder, nodes)
    assert folder.ledger.read_bytes() == spent
    folder.ledger.unlink()
    gather(folder, nodes)
    assert not folder.ledger.exists()  # nor does an empty one say that nothing was spent
    with pytest.raises(RunError, match=r"ledger\.jsonl is missing"):
        read_whole(folder)


def test_a_process_that_ended_is_named_with_what_it_said(tmp_path):
    trial = FlowerProcesses(tmp_path, {})
    (tmp_path / "logs").mkdir()
    trial._start("client-1", [sys.executable, "-c", "print('no port is free'); raise SystemExit(3)"])
    trial.processes["client-1"].wait()
    with pytest.raises(RunError, match=r"client-1 ended with status 3:\nno port is free"):
        trial.check_alive()


def test_nodes_count_as_connected_once_the_link_accepted_them_this_time(tmp_path):
    trial = FlowerProcesses(tmp_path, dict.fromkeys(("client-1", "client-2", "client-3"), tmp_path))
    (tmp_path / "logs").mkdir()
    for name in ("client-1", "client-2"):
        (tmp_path / "logs" / f"{name}.log").write_text("SuperNode ID: 7, of an earlier start\n")
    assert trial.connected() == []
    for name, said in (("client-1", "SuperNode ID: 8"), ("client-2", "waiting")):
        trial._start(name, [sys.executable, "-c", f"print('{said}')"])
        trial.processes[name].wait()
    assert trial.connected() == ["client-1"]


def test_a_process_is_stopped_with_all_that_it_started(tmp_path):
    trial = FlowerProcesses(tmp_path, {})
    (tmp_path / "logs").mkdir()
    child = "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], start_new_session=True)"
    code = f"import subprocess, sys, time\nfor _ in range(8): {child}\ntime.sleep(60)"
    trial._start("client-1", [sys.executable, "-c", code])
    until = time.monotonic() + 60
    while len(trial.family("client-1")) < 9 and time.monotonic() < until:
        time.sleep(0.05)
    assert len(trial.family("client-1")) == 9
    trial.stop("client-1")
    assert trial.family("client-1") == []
    assert trial.processes == {}
