"""The same protocol on a real SuperLink and real SuperNodes, with TLS and authentication, on this machine.

A federation waits much, so a few are played side by side; not all, since each of Flower's processes takes seconds of
work to start, and nodes that share a core with twenty others do not come before the server's patience ends.
"""

import json
import os
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from blobs import SAMPLES, make_learner
from paraaegis.config import Config, make_config
from paraaegis.deploy.key_folder import KeyFolder
from paraaegis.deploy.local_federation import follow, lay_out, write_app
from paraaegis.engines.flower.certificates import make_node_key
from paraaegis.engines.flower.processes import FlowerProcesses, free_port
from paraaegis.errors import RunError
from paraaegis.methods import find_method
from paraaegis.protocol.records import RoundRecord
from paraaegis.runs.assemble import make_keys
from paraaegis.runs.check import resolve
from paraaegis.runs.folder import RunFolder
from paraaegis.runs.run import federate

pytestmark = pytest.mark.timeout(2400)  # on a busy machine every one of Flower's processes takes its time
SUPPORT = Path(__file__).parents[1] / "support"
BASE = ("federation.rounds=2", f"federation.min_samples={SAMPLES}", "engine.deadline=600", "protect.ratio=0.2")
NOISE = ("privacy.epsilon=8.0", "privacy.calibration=paper")
SIDE_BY_SIDE = 3
LOST = 150  # seconds after which a killed node is given up; the server waits as long for nodes to come at first
FORBIDDEN = b"not to be looked into"
RLWE = "feedback under RLWE"
NAMES = {RLWE: ("paraaegis-feedback", "protect.cipher=rlwe")}  # where it is not just a method
METHODS = {"fedavg": 2, "paraaegis-static": 2, "paraaegis-feedback": 2, "lwe-secagg": 3, RLWE: 3}


def configured(method, clients, *settings, learner="make_learner"):
    name, *more = NAMES.get(method, (method,))
    noise = NOISE if find_method(name).noised else ()
    given = [f"protect.method={name}", *more, *noise, f"federation.clients={clients}", *settings]
    config = make_config({}, [*BASE, f"learner=blobs:{learner}", *given])
    return resolve(config, [SAMPLES])


@dataclass
class Played:
    """One federation: what it was made of, and what a test may ask about it."""

    config: Config
    out: Path
    folder: RunFolder = field(init=False)
    nodes: dict[str, Path] = field(init=False)
    local: list[RoundRecord] = field(default_factory=list)
    watched: set[bytes] = field(default_factory=set)
    late: list[str] = field(default_factory=list)
    left: list[int] = field(default_factory=list)
    alive: list[bool] = field(default_factory=list)
    listed: int = 0
    stopped: str = ""

    def __post_init__(self):
        self.folder, self.nodes = lay_out(self.config, self.out)
        (self.out / "gates").mkdir()
        (self.out / "traced").mkdir()

    def trial(self):
        """Flower's processes find the modules of the tests, the gates by which they are held, and the trace."""
        path = os.pathsep.join([str(SUPPORT), str(SUPPORT / "traced"), os.environ.get("PYTHONPATH", "")])
        trial = FlowerProcesses(self.out / "flower", self.nodes)
        trial.environment |= {
            "PYTHONPATH": path.rstrip(os.pathsep),
            "BLOBS_GATES": str(self.out / "gates"),
            "TRACED_INTO": str(self.out / "traced"),
        }
        return trial

    def start(self, trial):
        app = write_app(self.out / "flower" / "app")
        return trial.run(app, {"folder": str(self.folder.path)})

    def follow(self, trial, run):
        follow(trial, run, self.folder, lambda _: None, self.out / "flower" / "logs")

    def gate(self, client, number):
        """A client waits in a round until its gate is removed."""
        path = self.out / "gates" / f"{client}-{number}"
        path.touch()
        return path

    def play_locally(self):
        names = [f"client-{index}" for index in range(self.config.federation.clients)]
        federate(self.config, {name: make_learner(self.config, name) for name in names}, self.out / "local")
        self.local = RunFolder(self.out / "local").read_records()
        return self

    def lines(self):
        return self.folder.read_records()

    def models(self):
        """What every node has on its disk."""
        for node in self.nodes.values():
            run = next((node / "runs").glob("*"))
            yield np.load(run / json.loads((run / "manifest.json").read_text())["files"]["state/weights"])

    def opened(self, name):
        return (self.out / "traced" / f"{name}.opened").read_text().splitlines()


def outcome(line):
    return line.round, line.metrics, line.clients, line.agreement


def is_over(node):
    return any(json.loads(manifest.read_text())["over"] for manifest in node.glob("runs/*/manifest.json"))


def waited(path, seconds=300):
    until = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < until, f"{path} did not come"
        time.sleep(0.2)


# The federations


def play_as_locally(method, out):
    clients, enrols = METHODS[method], method == "paraaegis-static"
    played = Played(configured(method, clients, f"federation.quorum={clients}", learner="make_held"), out)
    if enrols:  # the first silo alone has the secrets, and the others' approved fingerprints
        holding = played.gate(0, 2)
        lead, *others = (KeyFolder(node) for node in played.nodes.values())
        for other in others:
            other.keys.unlink()
        lead.approve({other.path.name: other.create(lead.create()) for other in others})
    root = make_keys(played.config).root.secret
    secrets = [root, *((node / "identity").read_bytes() for node in played.nodes.values())]
    with played.trial() as trial:
        run = played.start(trial)
        if enrols:
            waited(holding.with_suffix(".waiting"))  # the secrets went through, and a whole round
            played.watched = watch(trial, secrets)
            holding.unlink()
        played.follow(trial, run)
    return played.play_locally()


def play_rescue(out):
    """A node is killed in round 1; when it is back the history, one round here, no longer reaches it."""
    settings = ("federation.quorum=2", "federation.rounds=4", "federation.history=1", f"engine.deadline={LOST}")
    played = Played(configured("fedavg", 3, *settings, learner="make_held"), out)
    dying, holding = played.gate(2, 1), played.gate(0, 2)
    with played.trial() as trial:
        run = played.start(trial)
        waited(dying.with_suffix(".waiting"))
        trial.stop("client-2", signal.SIGKILL)
        waited(holding.with_suffix(".waiting"))
        trial.bring_back("client-2")
        dying.unlink()
        holding.unlink()
        played.follow(trial, run)
    return played


def play_loss(out, method="lwe-secagg"):
    """A node is killed in the only round of a run with key shares, and gets the model when the run is over."""
    settings = ("federation.quorum=3", "federation.rounds=1", f"engine.deadline={LOST}")
    played = Played(configured(method, 4, *settings, learner="make_held"), out)
    dying = played.gate(3, 1)
    with played.trial() as trial:
        run = played.start(trial)
        waited(dying.with_suffix(".waiting"))
        trial.stop("client-3", signal.SIGKILL)
        played.follow(trial, run)
        played.late = [node.name for node in played.nodes.values() if not is_over(node)]
        dying.unlink()
        trial.bring_back("client-3")
        while trial.status(run) != "finished:completed":
            time.sleep(1)
        played.start(trial)
        until = time.monotonic() + 300
        while played.folder.checkpoint.exists() and time.monotonic() < until:
            time.sleep(0.2)
    return played


def play_restart(out):
    """The SuperLink is killed after round 1 and started again; the noise of round 2 is drawn a second time."""
    played = Played(configured("dp-fedavg", 2, "federation.quorum=2", "federation.rounds=2"), out)
    with played.trial() as trial:
        played.start(trial)
        waited(played.folder.records)
        trial.stop("superlink", signal.SIGKILL)
        trial.start_link()
        for name in played.nodes:
            if trial.processes[name].poll() is not None:
                trial.bring_back(name)
        played.follow(trial, played.start(trial))
    return played.play_locally()


def play_refusals(out):
    """A node that nobody registered, and a server that has to stop."""
    played = Played(configured("fedavg", 1, "federation.min_samples=1000"), out)
    stranger = out / "nodes" / "stranger"
    stranger.mkdir()
    with played.trial() as trial:
        trial.nodes["stranger"] = stranger
        trial.keys["stranger"] = make_node_key(out / "strangers", "stranger")
        trial.start_node("stranger")
        until = time.monotonic() + 120
        while trial.processes["stranger"].poll() is None and time.monotonic() < until:
            time.sleep(0.5)
        trial.stop("stranger")
        played.listed = len(trial.flwr("supernode", "list", "trial", "--format", "json")["nodes"])
        with pytest.raises(RunError) as stopped:
            played.follow(trial, played.start(trial))
        played.stopped = str(stopped.value)
        played.alive = [bool(trial.family(name)) for name in ("superlink", "client-0")]
    played.left = [pid for name in ("superlink", *trial.nodes) for pid in trial.family(name)]
    return played


@pytest.fixture(scope="module")
def playing(tmp_path_factory):
    """Each on a SuperLink of its own; a test waits for the one that it asks about."""
    plays = {"rescue": play_rescue, "restart": play_restart, "loss": play_loss, "refusals": play_refusals}
    plays["loss under RLWE"] = partial(play_loss, method=RLWE)
    places = {name: tmp_path_factory.mktemp(name) for name in [*plays, *METHODS]}
    with ThreadPoolExecutor(SIDE_BY_SIDE) as threads:
        going = {name: threads.submit(play, places[name]) for name, play in plays.items()}
        yield going | {method: threads.submit(play_as_locally, method, places[method]) for method in METHODS}


# What came of them


@pytest.mark.parametrize("method", METHODS)
def test_a_run_on_flower_equals_one_in_a_single_process(method, playing):
    played = playing[method].result()
    assert [outcome(line) for line in played.lines()] == [outcome(line) for line in played.local]
    assert played.lines()[-1].metrics["accuracy"] > 0.5
    assert played.folder.read_result()["rounds"] == 2


@pytest.mark.parametrize("method", METHODS)
def test_each_silo_keeps_a_ledger_of_its_own(method, playing):
    for name, node in playing[method].result().nodes.items():
        sent = [json.loads(line) for line in (node / "ledger.jsonl").read_text().splitlines()]
        assert {one["client"] for one in sent} == {name}
        assert {one["round"] for one in sent} >= {1, 2}


def test_the_lead_sealed_its_secrets_to_the_silo_that_had_none(playing):
    lead, silo = (KeyFolder(node) for node in playing["paraaegis-static"].result().nodes.values())
    assert lead.key_id == silo.key_id


@pytest.mark.parametrize("name", [*METHODS, "rescue", "loss", "loss under RLWE", "restart"])
def test_the_server_opens_no_key_file(name, playing):
    played = playing[name].result()
    secret = ("/keys", "/identity", "/approved.toml")
    assert any(path.endswith("paraaegis_app/app.py") for path in played.opened("superlink"))  # the ServerApp is traced
    assert not [path for path in played.opened("superlink") if path.endswith(secret)]
    assert [path for path in played.opened("client-0") if path.endswith(secret)]  # the trace would show them


def test_the_server_holds_no_secret(playing):
    """Its memory was searched while the run went on; an assertion there would have failed it."""
    played = playing["paraaegis-static"].result()
    assert memory_holds(os.getpid(), [make_keys(played.config).root.secret])  # the search can find
    if played.watched == {FORBIDDEN}:
        pytest.skip("this system does not let a process look into the memory of another")
    assert any(b"flwr-serverapp" in name for name in played.watched)
    assert any(b"flower-superlink" in name for name in played.watched)


def test_a_node_killed_in_a_round_leaves_a_round_that_stands_and_gets_a_peers_model_when_it_is_back(playing):
    played = playing["rescue"].result()
    lines = played.lines()
    assert [len(line.clients) for line in lines] == [2, 2, 2, 3]
    assert ["client-2" in line.dropped for line in lines] == [True, True, True, False]
    assert "needs the aggregates of rounds" in lines[2].dropped["client-2"]
    assert "snapshot" in lines[3].bytes_up
    first, *others = played.models()
    assert all(np.array_equal(first, model) for model in others)


@pytest.mark.parametrize("name", ["loss", "loss under RLWE"])
def test_key_shares_survive_a_dropout_and_who_was_away_at_the_end_is_given_the_model(name, playing):
    played = playing[name].result()
    (line,) = played.lines()
    assert line.clients == ["client-0", "client-1", "client-2"]
    assert played.late == ["client-3"]
    assert all(is_over(node) for node in played.nodes.values())
    first, *others = played.models()
    assert first.any()
    assert all(np.array_equal(first, model) for model in others)
    assert not played.folder.history.folder.exists()


def test_a_superlink_that_is_killed_and_restarted_resumes_the_run_from_the_last_round(playing):
    played = playing["restart"].result()
    assert [line.round for line in played.lines()] == [1, 2]
    assert played.folder.read_result()["rounds"] == 2
    assert [outcome(line) for line in played.lines()] == [outcome(line) for line in played.local]


def test_a_node_that_is_not_registered_is_turned_away(playing):
    played = playing["refusals"].result()
    log = (played.out / "flower" / "logs" / "stranger.log").read_text()
    assert played.listed == 1
    assert "Failed to activate SuperNode" in log
    assert "SuperNode ID" not in log


def test_why_a_server_stopped_is_told(playing):
    stopped = playing["refusals"].result().stopped
    assert stopped.startswith("the server stopped: not everyone joined: client-0: client-0 has too few samples: ")
    assert "noise assumes at least 1000" in stopped


def test_a_trial_leaves_no_process_behind(playing):
    assert playing["refusals"].result().alive == [True, True]
    assert playing["refusals"].result().left == []


def test_the_programs_of_flower_are_missed_by_name(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with (
        pytest.raises(RunError, match=r"flower-superlink is not installed; run: pip install 'paraaegis\[flower\]'"),
        FlowerProcesses(tmp_path, {}),
    ):
        pass
    assert free_port() > 0


# Looking into processes


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
            assert not memory_holds(pid, secrets)
            seen.add(Path(f"/proc/{pid}/cmdline").read_bytes())
        except PermissionError:
            seen.add(FORBIDDEN)
        except (FileNotFoundError, ProcessLookupError):
            continue
    return seen
