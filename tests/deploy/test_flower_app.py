"""Protected apps in Flower itself: on a real SuperLink with TLS, where a node is killed, and in its simulation."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from flwr.serverapp.strategy import FedAdam

from flower_grid import SHAPES, Grid, first_model
from paraaegis.deploy.key_folder import deal_keys
from paraaegis.engines.flower import processes
from paraaegis.engines.flower.processes import FlowerProcesses
from paraaegis.runs.folder import RunFolder

pytestmark = pytest.mark.timeout(900)
ROOT = Path(__file__).parents[2]
SUPPORT, EXAMPLE = ROOT / "tests" / "support", ROOT / "examples" / "flower_app"
NAMES = [f"client-{number}" for number in range(4)]
CONFIG = """
[federation]
clients = 4
rounds = 2
quorum = 3
[protect]
method = "paraaegis-feedback"
ratio = 1.0
cipher = "rlwe"
reveal = "server"
[engine]
share_metrics = true
"""


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """FedAdam with four nodes, the last of which is killed while it trains in round 2."""
    out = tmp_path_factory.mktemp("drop-in")
    gates, path = out / "gates", out / "paraaegis.toml"
    gates.mkdir()
    path.write_text(CONFIG)
    deal_keys(out / "keys", NAMES)
    nodes = {name: out / "keys" / name for name in NAMES}
    for node in nodes.values():
        shutil.copy(path, node / "config.toml")

    def settings(name, folder):
        return f'paraaegis="{folder}" partition-id={name[-1]}'

    trial = FlowerProcesses(out / "flower", nodes, settings)
    trial.environment |= {"PYTHONPATH": os.pathsep.join([str(SUPPORT), str(ROOT / "src")]), "DROP_IN_GATES": str(gates)}
    with trial:
        dying = gates / "3-2"
        dying.touch()
        run = trial.run(SUPPORT / "drop_in_app", {"config": str(path), "folder": str(out / "run")})
        waited(dying.with_suffix(".waiting"))
        trial.stop("client-3", signal.SIGKILL)
        while not (status := trial.status(run)).startswith("finished"):
            time.sleep(2)
    return SimpleNamespace(out=out, status=status, nodes=nodes)


def waited(path):
    until = time.monotonic() + 300
    while not path.exists():
        assert time.monotonic() < until, f"{path} did not come"
        time.sleep(0.2)


def test_the_run_ends_although_a_node_was_killed(played):
    lines = RunFolder(played.out / "run").read_records()
    assert played.status == "finished:completed"
    assert [len(line.clients) for line in lines] == [4, 3]
    assert all("size" in line.metrics for line in lines)


def test_the_model_is_what_fedadam_makes_of_the_same_updates_without_protection(played):
    lines = RunFolder(played.out / "run").read_records()
    plain = Grid([], [{}] * 4)

    class Present(FedAdam):
        """Hears of the nodes that were in each round's sum."""

        def aggregate_train(self, server_round, replies):
            counted = {NAMES.index(name) + 1 for name in lines[server_round - 1].clients}
            return super().aggregate_train(
                server_round, [one for one in replies if one.metadata.src_node_id in counted]
            )

    expected = Present(min_train_nodes=4).start(plain, first_model(), len(lines))
    with np.load(played.out / "run" / "result.npz") as found:
        for name in SHAPES:
            np.testing.assert_allclose(found[name], expected.arrays[name].numpy(), rtol=1e-5, atol=1e-5)


def test_every_node_has_the_servers_model_in_the_end(played):
    with np.load(played.out / "run" / "result.npz") as final:
        for name in NAMES[:3]:
            with np.load(played.nodes[name] / "model.npz") as model:
                for array in SHAPES:
                    np.testing.assert_array_equal(model[array], final[array])


def test_the_example_runs_in_flowers_simulation_with_the_four_lines_of_its_diff(tmp_path):
    app = tmp_path / "app"
    shutil.copytree(EXAMPLE, app)
    subprocess.run(["git", "apply", "-p0", "protect.diff"], cwd=app, check=True)
    changed = [line for line in (app / "protect.diff").read_text().splitlines() if re.match(r"[+-](?![+-])", line)]
    assert len([line for line in changed if line.startswith("+")]) == 4
    client = app / "digits" / "client_app.py"
    client.write_text(client.read_text().replace("protect()", "protect(simulate=True)"))
    environment = (
        os.environ
        | processes.QUIET
        | {
            "PYTHONPATH": str(ROOT / "src"),
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "FLWR_HOME": str(tmp_path / "flwr"),
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "PARAAEGIS_TRIAL": f"{tmp_path}:simulation",
        }
    )
    options = ["--federation-config", "num-supernodes=3 client-resources-num-cpus=1", "--stream"]
    try:
        done = subprocess.run(
            ["flwr", "run", ".", "local", *options], cwd=app, env=environment, capture_output=True, text=True,
            timeout=400, check=False,
        )  # fmt: skip
    finally:
        processes._end_marked(f"{tmp_path}:")  # Flower leaves a SuperLink behind
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    (place,) = re.findall(r"the run is kept in (\S+)", done.stdout)  # another SuperLink may serve this machine
    run = Path(place)
    lines = RunFolder(run).read_records()
    assert [len(line.clients) for line in lines] == [3, 3, 3]
    assert lines[-1].metrics["accuracy"] > 0.5
    assert json.loads((run / "result.json").read_text())["rounds"] == 3
