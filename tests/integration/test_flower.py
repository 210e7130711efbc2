"""The same protocol on a real SuperLink and real SuperNodes, with TLS and authentication, on this machine."""

import json
import os
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import pytest
import tomli_w

from blobs import SAMPLES, make_learner
from paraaegis.config import Config, make_config
from paraaegis.crypto.keys import new_identity, save_keys
from paraaegis.engines.flower.trial import Trial, free_port
from paraaegis.errors import RunError
from paraaegis.experiments.enrolment import KeyFolder
from paraaegis.experiments.folder import RunFolder
from paraaegis.experiments.run import federate
from paraaegis.experiments.trial import follow, write_app
from paraaegis.experiments.wire import make_keys, resolve
from paraaegis.protocol.state import Line

pytestmark = pytest.mark.timeout(1200)  # on a busy machine every one of Flower's processes takes its time
TESTS = str(Path(__file__).parent.parent)
APP = """from blobs import {learner}
from paraaegis.experiments import flower_app

server = flower_app.server_app(holdout=False)
client = flower_app.client_app({learner}, holdout=False)
"""
BASE = ("federation.rounds=2", f"federation.min_samples={SAMPLES}", "privacy.epsilon=8.0", "engine.deadline=120",
        "protect.ratio=0.2")  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def _importable():
    """Flower's processes find this folder's modules, and a file by which a test can hold one of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([TESTS, os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep))
        yield


def configured(method, clients, *settings):
    config = make_config({}, [*BASE, f"protect.method={method}", f"federation.clients={clients}", *settings])
    return resolve(config, [SAMPLES])


def laid_out(config, out, enrol=False):
    """A server's folder and one a silo, as `keys` and a courier would leave them; or with the first one as the lead."""
    folder, keys = RunFolder(out / "server"), make_keys(config)
    with folder.claimed(config, fresh=False):
        pass
    nodes = {f"client-{index}": out / f"client-{index}" for index in range(config.federation.clients)}
    for node in nodes.values():
        node.mkdir(mode=0o700)
        (node / "config.toml").write_text(tomli_w.dumps(msgspec.to_builtins(config)))
        new_identity(node / "identity")
        if not enrol or node.name == "client-0":
            save_keys(node / "keys", keys)
    if enrol:
        lead = KeyFolder(nodes["client-0"])
        lead.approve(
            {name: KeyFolder(node).create(lead.create()) for name, node in nodes.items() if name != "client-0"}
        )
    return folder, nodes


def locally(config, out):
    learners = {
        f"client-{index}": make_learner(config, f"client-{index}") for index in range(config.federation.clients)
    }
    federate(config, learners, out)
    return RunFolder(out).read_lines()


def started(trial, folder, out, learner="make_learner"):
    app = write_app(out / "app", APP.format(learner=learner))
    return trial.run(app, {"folder": str(folder.path)})


def outcome(line):
    return line.round, line.metrics, line.clients, line.agreement


FORBIDDEN = b"not to be looked into"
METHODS = {"fedavg": 2, "paraaegis-static": 2, "paraaegis-feedback": 2, "lwe-secagg": 3}


@dataclass
class Ran:
    config: Config
    folder: RunFolder
    nodes: dict[str, Path]
    local: list[Line]
    watched: set[bytes]


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """All four at once, each on a SuperLink of its own: most of their time is waiting."""

    places = {method: tmp_path_factory.mktemp(method) for method in METHODS}

    def one(method):
        out, clients = places[method], METHODS[method]
        config = configured(method, clients, f"federation.quorum={clients}")
        folder, nodes = laid_out(config, out, enrol=method == "paraaegis-static")
        secrets = [make_keys(config).vote, *((node / "identity").read_bytes() for node in nodes.values())]
        secrets.append((nodes["client-0"] / "keys").read_bytes()[-2000:-1000])
        with Trial(out, nodes) as trial:
            run, watched = started(trial, folder, out), set()
            while method == "paraaegis-static" and not folder.result.exists():
                watched |= watch(trial, secrets)
                time.sleep(10)
            follow(trial, run, folder, lambda _: None, out / "logs")
        return Ran(config, folder, nodes, locally(config, out / "local"), watched)

    with ThreadPoolExecutor(len(METHODS)) as threads:
        return dict(zip(METHODS, threads.map(one, METHODS), strict=True))


@pytest.mark.parametrize("method", METHODS)
def test_a_run_on_flower_equals_one_in_a_single_process(method, ran):
    lines = ran[method].folder.read_lines()
    assert [outcome(line) for line in lines] == [outcome(line) for line in ran[method].local]
    assert lines[-1].metrics["accuracy"] > 0.5
    assert ran[method].folder.read_result()["rounds"] == 2


@pytest.mark.parametrize("method", METHODS)
def test_each_silo_keeps_a_ledger_of_its_own(method, ran):
    for name, node in ran[method].nodes.items():
        sent = [json.loads(line) for line in (node / "ledger.jsonl").read_text().splitlines()]
        assert {one["client"] for one in sent} == {name}
        assert {one["round"] for one in sent} >= {1, 2}


def test_the_lead_sealed_its_secrets_to_the_silo_that_had_none(ran):
    lead, silo = (KeyFolder(node) for node in ran["paraaegis-static"].nodes.values())
    assert lead.key_id == silo.key_id


def test_the_server_opens_no_key_file_and_holds_no_secret(ran):
    """Watched while `ran` was running; an assertion there would have failed it."""
    assert memory_holds(os.getpid(), [make_keys(ran["paraaegis-static"].config).vote])  # the search can find
    if ran["paraaegis-static"].watched == {FORBIDDEN}:
        pytest.skip("this system does not let a process look into the memory of another")
    assert any(b"flwr-serverapp" in name for name in ran["paraaegis-static"].watched)
    assert any(b"flower-superlink" in name for name in ran["paraaegis-static"].watched)


def waited(path, seconds=240):
    until = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < until, f"{path} did not come"
        time.sleep(0.2)


def test_a_node_killed_in_a_round_leaves_a_round_that_stands_and_catches_up_when_it_is_back(tmp_path, monkeypatch):
    monkeypatch.setenv("BLOBS_GATES", str(tmp_path))
    config = configured("fedavg", 3, "federation.quorum=2", "federation.rounds=4", "engine.deadline=60")
    folder, nodes = laid_out(config, tmp_path)
    for gate in ("2-2", "0-3"):  # the last client in round 2, the first one in round 3
        (tmp_path / gate).touch()
    with Trial(tmp_path, nodes) as trial:
        run = started(trial, folder, tmp_path, "make_held")
        waited(tmp_path / "2-2.waiting")
        trial.stop("client-2", signal.SIGKILL)
        waited(tmp_path / "0-3.waiting")
        trial.bring_back("client-2")
        (tmp_path / "0-3").unlink()
        follow(trial, run, folder, lambda _: None, tmp_path / "logs")
    lines = folder.read_lines()
    assert [len(line.clients) for line in lines] == [3, 2, 2, 3]
    assert "client-2" in lines[1].dropped
    manifests = [json.loads(next((node / "runs").glob("*/manifest.json")).read_text()) for node in nodes.values()]
    models = [
        np.load(next((node / "runs").glob("*")) / manifest["files"]["state/weights"])
        for node, manifest in zip(nodes.values(), manifests, strict=True)
    ]
    assert all((model == models[0]).all() for model in models)


def test_a_superlink_that_is_killed_and_restarted_resumes_the_run_from_the_last_round(tmp_path):
    config = configured("ckks-fedavg", 2, "federation.quorum=2", "federation.rounds=3")
    folder, nodes = laid_out(config, tmp_path)
    with Trial(tmp_path, nodes) as trial:
        started(trial, folder, tmp_path)
        waited(folder.lines)  # round 1 is done
        trial.stop("superlink", signal.SIGKILL)
        trial.start_link()
        for name in nodes:
            if trial.processes[name].poll() is not None:
                trial.bring_back(name)
        run = started(trial, folder, tmp_path)
        result = follow(trial, run, folder, lambda _: None, tmp_path / "logs")
    lines = folder.read_lines()
    assert [line.round for line in lines] == [1, 2, 3]
    assert result.rounds == 3
    assert [outcome(line) for line in lines] == [outcome(line) for line in locally(config, tmp_path / "local")]


def test_a_node_that_is_not_registered_is_turned_away(tmp_path):
    config = configured("fedavg", 1)
    _, nodes = laid_out(config, tmp_path)
    stranger = tmp_path / "stranger"
    stranger.mkdir()
    with Trial(tmp_path, nodes) as trial:
        trial._nodes["stranger"] = stranger
        from paraaegis.engines.flower.certificates import make_node_key

        trial._keys["stranger"] = make_node_key(tmp_path / "nodes", "stranger")
        trial.start_node("stranger")
        log = tmp_path / "logs" / "stranger.log"
        until = time.monotonic() + 40
        while trial.processes["stranger"].poll() is None and time.monotonic() < until:
            if "auth" in log.read_text().lower():
                break
            time.sleep(0.5)
        listed = trial.flwr("supernode", "list", "trial", "--format", "json")
    assert len(listed["nodes"]) == 1
    assert "SuperNode ID" not in log.read_text()


def open_files(pid):
    found = set()
    for link in Path(f"/proc/{pid}/fd").glob("*"):
        try:
            found.add(str(link.readlink()))
        except OSError:
            continue
    return found


def memory_holds(pid, secrets):
    """Whether any of these bytes lies in the memory of a process."""
    with Path(f"/proc/{pid}/maps").open() as maps, Path(f"/proc/{pid}/mem").open("rb", 0) as memory:
        for line in maps:
            place, rights = line.split()[:2]
            if "r" not in rights or "[v" in line:
                continue
            start, end = (int(part, 16) for part in place.split("-"))
            try:
                memory.seek(start)
                content = memory.read(end - start)
            except (OSError, ValueError, OverflowError):
                continue
            if any(secret in content for secret in secrets):
                return True
    return False


def watch(trial, secrets):
    """Look into the SuperLink and all that it started, the ServerApp among them; the names of those that were seen."""
    seen = set()
    for pid in trial.family("superlink"):
        try:
            assert not any(file.endswith(("/keys", "/identity")) for file in open_files(pid))
            assert not memory_holds(pid, secrets)
            seen.add(Path(f"/proc/{pid}/cmdline").read_bytes())
        except PermissionError:
            seen.add(FORBIDDEN)
        except (FileNotFoundError, ProcessLookupError):
            continue
    return seen


def test_a_trial_leaves_no_process_behind(tmp_path):
    config = configured("fedavg", 1)
    _, nodes = laid_out(config, tmp_path)
    with Trial(tmp_path, nodes) as trial:
        families = [trial.family(name) for name in trial.processes]
        assert all(families)
    assert not any(trial.family(name) for name in ("superlink", *nodes))


def test_the_programs_of_flower_are_missed_by_name(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with (
        pytest.raises(RunError, match=r"flower-superlink is not installed; run: pip install 'paraaegis\[flower\]'"),
        Trial(tmp_path, {}),
    ):
        pass
    assert free_port() > 0
