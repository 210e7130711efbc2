"""One command, one run, one folder: what is written, what is shown, what is refused."""

import json
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch

from paraaegis.cli import main
from paraaegis.config import make_config
from paraaegis.deploy.local_federation import prepare
from paraaegis.errors import ConfigError, LearnerError, ParaAegisError, RunError
from paraaegis.launch import run
from paraaegis.learn import devices
from paraaegis.learn.data import load
from paraaegis.learn.models import build
from paraaegis.privacy.ledger import read_ledger
from paraaegis.runs.folder import RunFolder
from paraaegis.runs.guarantees import spending
from paraaegis.runs.run import federate
from toy import ToyLearner, configure

ROOT = Path(__file__).parents[2]
DIGITS = str(ROOT / "configs" / "digits.toml")
COMMAND = str(Path(sys.executable).with_name("paraaegis"))
QUICK = ["federation.clients=3", "federation.rounds=3", "model.name=mlp", "train.epochs=1"]


def words(*settings):
    return [word for setting in settings for word in ("--set", setting)]


def call(monkeypatch, capsys, *arguments):
    """The command in this process: its exit code, and what it wrote to either stream."""
    monkeypatch.setattr(sys, "argv", ["paraaegis", *map(str, arguments)])
    with pytest.raises(SystemExit) as stopped:
        main()
    told = capsys.readouterr()
    return stopped.value.code or 0, told.out, told.err


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of fedavg on digits through the installed command, and its folder."""
    folder = tmp_path_factory.mktemp("run") / "fedavg"
    done = subprocess.run(
        [COMMAND, "run", DIGITS, "--out", folder, *words(*QUICK, "protect.method=fedavg")],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    return done, folder


# A run


def test_a_run_shows_its_rounds_its_result_and_where_it_lies(finished):
    done, folder = finished
    assert (done.returncode, done.stderr) == (0, "")
    for number in (1, 2, 3):
        assert f"round {number}/3" in done.stdout
    assert str(folder) in done.stdout
    assert "fedavg" in done.stdout


def test_a_run_leaves_its_configuration_lines_model_and_result(finished):
    _, folder = finished
    assert sorted(contents(folder)) == [
        ".lock",
        "best.pt",
        "config.toml",
        "last.npz",
        "ledger.jsonl",
        "model.pt",
        "result.json",
        "rounds.jsonl",
    ]


@pytest.mark.parametrize(("gpu", "told"), [("Some GPU", {"gpu": "Some GPU"}), ("", {})])
def test_a_result_names_the_gpu_that_it_was_made_on(gpu, told, monkeypatch, tmp_path):
    monkeypatch.setattr(devices, "gpu_name", lambda _: gpu)
    config = make_config({}, [*QUICK, "federation.rounds=1"])
    machine = run(config, tmp_path / "run").machine
    assert {key: machine[key] for key in machine.keys() & {"gpu"}} == told
    assert json.loads((tmp_path / "run" / "result.json").read_text())["machine"] == machine


@pytest.mark.parametrize(("method", "model", "profile", "times"), [
    ("ckks-fedavg", "cnn", "compact", 1),
    ("ckks-fedavg", "cnn", "precise", 0),
    ("ckks-fedavg", "mlp", "compact", 0),
    ("dp-fedavg", "cnn", "compact", 0),
])  # fmt: skip
@pytest.mark.parametrize("begin", [lambda config, out: run(config, out), prepare], ids=["one process", "federation"])
def test_batch_norm_under_the_compact_profile_is_warned_of_once(begin, method, model, profile, times, tmp_path, caplog):
    settings = [f"protect.method={method}", f"model.name={model}", f"protect.profile={profile}", "federation.rounds=1"]
    begin(make_config({}, [*QUICK, *settings]), tmp_path / "run")
    assert caplog.text.count("supports sums within ±45, but BatchNorm statistics of cnn") == times


def test_the_written_configuration_is_complete_and_resolved(finished):
    config = make_config(tomllib.loads((finished[1] / "config.toml").read_text()))
    assert config.federation.min_samples == 1437 // 3
    assert config.federation.quorum == 3
    assert config.train.epochs == 1


def test_a_line_tells_accuracy_seconds_and_bytes(finished):
    lines = [json.loads(text) for text in (finished[1] / "rounds.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [1, 2, 3]
    for line in lines:
        assert 0 <= line["metrics"]["accuracy"] <= 1
        assert line["metrics"]["loss"] > 0
        assert {"train", "protect", "combine", "reveal", "wall"} <= line["seconds"].keys()
        assert line["bytes_up"]["grid"] == line["bytes_down"]["grid"] > 0


def test_plain_torch_loads_the_model_and_measures_the_same(finished):
    state = torch.load(finished[1] / "model.pt", weights_only=True)
    digits = load("digits", None)
    model = build("mlp", digits.shape, digits.classes, seed=5)
    model.load_state_dict(state)
    scale = torch.from_numpy(digits.test_images).permute(0, 3, 1, 2).float() / 255
    mean, std = (torch.tensor(part, dtype=torch.float32).view(1, -1, 1, 1) for part in (digits.mean, digits.std))
    with torch.inference_mode():
        predicted = model.eval()((scale - mean) / std).argmax(1).numpy()
    accuracy = json.loads((finished[1] / "result.json").read_text())["metrics"]["accuracy"]
    assert (predicted == digits.test_labels).mean() == pytest.approx(accuracy, abs=0.01)


def test_a_finished_run_returns_its_result_and_changes_nothing(finished, monkeypatch, capsys):
    _, folder = finished
    before = contents(folder)
    code, out, _ = call(
        monkeypatch, capsys, "run", DIGITS, "--out", folder, "--json", *words(*QUICK, "protect.method=fedavg")
    )
    assert code == 0
    assert json.loads(out) == json.loads(before["result.json"])
    assert contents(folder) == before


def test_a_run_that_was_moved_says_where_it_is_and_what_it_lost(finished, monkeypatch, capsys, tmp_path, caplog):
    shutil.copytree(finished[1], tmp_path / "moved")
    again = ("run", DIGITS, "--out", tmp_path / "moved", "--json", *words(*QUICK, "protect.method=fedavg"))
    (tmp_path / "moved" / "model.pt").unlink()
    code, out, _ = call(monkeypatch, capsys, *again)
    assert (code, json.loads(out)["folder"]) == (0, str(tmp_path / "moved"))
    assert "model.pt is gone; --fresh starts over" in caplog.text
    (tmp_path / "moved" / "ledger.jsonl").unlink()
    code, _, told = call(monkeypatch, capsys, *again)
    assert code == 2
    assert "ledger.jsonl is gone" in told


@pytest.mark.parametrize(("left", "told"), [
    (["result.json", "rounds.jsonl", "ledger.jsonl"], "of a run are still there"),
    (["rounds.jsonl"], "of a run is still there"),
])  # fmt: skip
def test_a_result_whose_configuration_is_gone_is_not_given_out_for_another(finished, tmp_path, left, told):
    copy = shutil.copytree(finished[1], tmp_path / "copy")
    for path in copy.iterdir():
        if path.name not in {".lock", *left}:
            path.unlink()
    another = make_config({}, [*QUICK, "protect.method=fedavg", "seed=1", "federation.rounds=1"])
    with pytest.raises(RunError, match=f"config.toml is gone, but {', '.join(left)} {told}.* another --out") as error:
        run(another, copy)
    assert not (copy / "config.toml").exists()
    simulated = "ledger.jsonl" in left  # else it may have spent what nobody can tell
    assert ("--fresh" in str(error.value)) == simulated
    if simulated:
        assert run(another, copy, fresh=True).rounds == 1
    else:
        with pytest.raises(RunError, match="the privacy spent is unknown"):
            run(another, copy, fresh=True)


@pytest.mark.parametrize("command", ["run", "privacy"])
def test_a_ledger_that_lost_a_client_of_a_round_is_refused(command, finished, monkeypatch, capsys, tmp_path):
    copy = shutil.copytree(finished[1], tmp_path / "copy")
    lines = (copy / "ledger.jsonl").read_text().splitlines(keepends=True)
    (copy / "ledger.jsonl").write_text("".join(lines[:-1]))
    again = (DIGITS, "--out", copy, *words(*QUICK, "protect.method=fedavg")) if command == "run" else (copy,)
    code, _, told = call(monkeypatch, capsys, command, *again)
    assert code == 2
    assert "ledger.jsonl is incomplete: it has nothing of client-" in told


def test_a_ledger_that_lost_one_of_a_clients_parts_is_not_whole(tmp_path):
    run(make_config({}, [*QUICK, "federation.rounds=1"]), tmp_path / "run")
    ledger = tmp_path / "run" / "ledger.jsonl"
    spending(tmp_path / "run")
    ledger.write_bytes(ledger.read_bytes()[:-10])  # as a kill cuts it
    with pytest.raises(RunError, match="is incomplete: it has no 'outside' of client-"):
        spending(tmp_path / "run")


@pytest.mark.parametrize("what", ["votes", "metrics"])
def test_a_ledger_without_the_values_of_a_round_is_not_whole(finished, tmp_path, what):
    copy = shutil.copytree(finished[1], tmp_path / "copy")
    lines = [json.loads(line) for line in (copy / "ledger.jsonl").read_text().splitlines()]
    lines[-1]["what"] = what
    (copy / "ledger.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(RunError, match="it has nothing of client-"):
        spending(copy)


def test_a_folder_may_have_brackets_in_its_name(finished, monkeypatch, capsys, tmp_path):
    copy = shutil.copytree(finished[1], tmp_path / "a[" / "b] [red]")
    code, out, _ = call(monkeypatch, capsys, "run", DIGITS, "--out", copy, *words(*QUICK, "protect.method=fedavg"))
    assert code == 0
    assert str(copy) in out


def test_fresh_starts_over_and_json_is_all_of_stdout(finished, monkeypatch, capsys, tmp_path):
    """The default folder, too: runs/METHOD-DIGEST below the working directory."""
    _, folder = finished
    monkeypatch.chdir(tmp_path)
    arguments = ["run", DIGITS, "--json", *words(*QUICK, "protect.method=fedavg")]
    results = []
    for more in ([], ["--fresh"]):
        code, out, err = call(monkeypatch, capsys, *arguments, *more)
        assert code == 0
        assert "round 3/3" in err  # it ran; a finished run shows no rounds
        results.append(json.loads(out))
    (made,) = (tmp_path / "runs").iterdir()
    assert made.name.startswith("fedavg-")
    assert results[0]["folder"] == str(made.relative_to(tmp_path))
    assert results[0]["metrics"] == results[1]["metrics"]
    assert results[0]["metrics"] == json.loads((folder / "result.json").read_text())["metrics"]


def test_fresh_runs_another_configuration_in_the_same_folder(monkeypatch, capsys, tmp_path):
    base = ["run", DIGITS, "--out", tmp_path, "--json", *words(*QUICK, "protect.method=fedavg", "federation.rounds=1")]
    assert call(monkeypatch, capsys, *base)[0] == 0
    code, out, _ = call(monkeypatch, capsys, *base, "--fresh", *words("seed=1"))
    assert code == 0
    assert tomllib.loads((tmp_path / "config.toml").read_text())["seed"] == 1
    assert json.loads(out)["rounds"] == 1


# What is refused


def test_the_folder_of_another_configuration_is_refused_with_the_difference(finished, monkeypatch, capsys):
    _, folder = finished
    before = contents(folder)
    settings = words(*QUICK, "protect.method=fedavg", "train.epochs=2")
    code, out, err = call(monkeypatch, capsys, "run", DIGITS, "--out", folder, *settings)
    assert code == 2
    assert "train.epochs was 1, now 2" in err
    assert "--fresh" in err
    assert "Traceback" not in out + err
    assert contents(folder) == before


def test_how_a_run_runs_here_is_no_other_configuration(finished, monkeypatch, capsys):
    settings = words(*QUICK, "protect.method=fedavg", "engine.workers=1", "engine.checkpoint=7")
    assert call(monkeypatch, capsys, "run", DIGITS, "--out", finished[1], *settings)[0] == 0


REFUSED = {
    "unknown key": (["protect.ration=0.1"], "protect.ration"),
    "impossible ratio": (["protect.ratio=1.5"], "1.5"),
    "clip of zero": (["privacy.clip=0"], "privacy.clip"),
    "contradiction": (["protect.method=paraaegis-static", "protect.decay=0.9"], "protect.decay"),
    "quorum": (["federation.quorum=9"], "federation.quorum"),
    "unknown method": (["protect.method=paragis-static"], "paraaegis-static"),
    "unknown model": (["model.name=cn"], "model.name"),
    "unknown data": (["data.name=digit"], "data.name"),
    "unknown profile": (["protect.profile=sloppy"], "protect.profile"),
    "too many clients": (["federation.clients=1000"], "1000"),
    "more clients than a sum carries": (["federation.clients=130"], "126"),
    "seed": (["seed=18446744073709551616"], "seed"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_run_is_refused_before_anything_is_written(name, monkeypatch, capsys, tmp_path):
    settings, part = REFUSED[name]
    code, _, err = call(monkeypatch, capsys, "run", DIGITS, "--out", tmp_path / "out", *words(*QUICK, *settings))
    assert code == 2
    assert err.startswith("error: ")
    assert part in err
    assert err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_the_installed_command_refuses_without_a_traceback(tmp_path):
    done = subprocess.run(
        [COMMAND, "run", "--out", tmp_path / "out", *words("protect.ration=1")],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: unknown key 'protect.ration' (did you mean 'ratio'?)")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("content", ["seed = ", None])
def test_a_configuration_that_cannot_be_read_is_refused(monkeypatch, capsys, tmp_path, content):
    path = tmp_path / "c.toml"
    if content is not None:
        path.write_text(content)
    code, _, err = call(monkeypatch, capsys, "run", path, "--out", tmp_path / "out")
    assert code == 2
    assert str(path) in err
    assert not (tmp_path / "out").exists()


def test_a_file_in_the_place_of_the_folder_is_refused_by_name(monkeypatch, capsys, tmp_path):
    path = tmp_path / "file"
    path.write_text("mine")
    settings = words(*QUICK, "protect.method=fedavg")
    code, _, err = call(monkeypatch, capsys, "run", DIGITS, "--out", path, *settings)
    assert code == 2
    assert str(path) in err
    assert path.read_text() == "mine"


# Folders, with learners that take no time


def toys(count=2, length=5):
    return {f"client-{i}": ToyLearner(np.full((1, length), i + 1.0)) for i in range(count)}


def toy_config(*settings):
    return configure("federation.clients=2", "federation.rounds=3", "protect.method=fedavg", *settings)


class StoppedError(Exception):
    pass


def stop_at(number):
    def on_record(line):
        if line.round == number:
            raise StoppedError

    return on_record


@pytest.fixture
def half(tmp_path):
    """The folder of a run that stopped in its third round."""
    with pytest.raises(StoppedError):
        federate(toy_config(), toys(), tmp_path, on_record=stop_at(2))
    assert (tmp_path / "checkpoint.npz").exists()
    return tmp_path


def test_a_folder_that_is_no_runs_is_refused_and_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(RunError, match=r"is not a run's folder: it holds thesis\.txt"):
        federate(toy_config(), toys(), tmp_path)
    assert (tmp_path / "thesis.txt").read_text() == "mine"
    assert not (tmp_path / "config.toml").exists()


def test_a_folder_that_another_process_runs_in_is_refused(tmp_path):
    holder = (
        "import sys; from pathlib import Path; from paraaegis.config import Config;"
        "from paraaegis.runs.folder import RunFolder\n"
        "with RunFolder(Path(sys.argv[1])).claimed(Config(), False): print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", holder, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as first:
        assert first.stdout.readline() == b"held\n"
        for fresh in (False, True):
            with pytest.raises(
                RunError, match=r"another process is running in .*; wait for it or choose another --out"
            ):
                federate(toy_config(), toys(), tmp_path, fresh=fresh)
        first.stdin.close()
        first.wait(30)
    federate(toy_config(), toys(), tmp_path, fresh=True)


def test_a_stopped_run_goes_on_and_shows_the_rounds_it_had(half, tmp_path_factory):
    shown = []
    result = federate(toy_config(), toys(), half, on_record=lambda line: shown.append(line.round))
    assert shown == [1, 2, 3]
    whole = federate(toy_config(), toys(), tmp_path_factory.mktemp("whole"))
    assert (result.rounds, result.metrics) == (whole.rounds, whole.metrics)


@pytest.mark.parametrize("name", ["checkpoint.npz", "rounds.jsonl", "config.toml", "keys"])
@pytest.mark.parametrize("damage", ["cut", "noise", "empty"])
def test_a_damaged_file_is_refused_by_name_and_fresh_helps(half, name, damage):
    path = half / name
    path.write_bytes({"cut": path.read_bytes()[:10], "noise": b"\x91" * 64 + b"\n", "empty": b""}[damage])
    with pytest.raises(ParaAegisError, match=str(half)) as caught:
        federate(toy_config(), toys(), half)
    assert "--fresh" in str(caught.value) or name == "keys"
    assert federate(toy_config(), toys(), half, fresh=True).rounds == 3


@pytest.mark.parametrize("content", ["{", "[]"])
def test_a_damaged_result_is_refused_by_name(tmp_path, content):
    federate(toy_config(), toys(), tmp_path)
    (tmp_path / "result.json").write_text(content)
    with pytest.raises(RunError, match=r"result\.json is damaged"):
        federate(toy_config(), toys(), tmp_path)


NAMED = "federation.names=['hospital-a', 'hospital-b']"


def test_a_run_with_names_is_the_same_run_under_other_names(tmp_path):
    """On the data of an experiment, by the whole way from the configuration to the ledger."""
    short = ["federation.rounds=2", "federation.fraction=0.5", "federation.clients=2", "model.name=mlp",
             "protect.method=dp-fedavg"]  # fmt: skip
    plain, named = (run(make_config({}, [*short, *more]), tmp_path / str(len(more))) for more in ([], [NAMED]))
    assert plain.metrics == named.metrics
    ledgers = [read_ledger(tmp_path / folder / "ledger.jsonl") for folder in ("0", "1")]
    called = {"client-0": "hospital-a", "client-1": "hospital-b"}
    told = [sorted((release.round, called.get(release.client, release.client)) for release in one) for one in ledgers]
    assert told[0] == told[1]


def test_learners_of_your_own_go_by_the_names_of_the_configuration(tmp_path):
    learners = dict(zip(("hospital-b", "hospital-a"), toys().values(), strict=True))
    federate(configure("federation.rounds=1", "protect.method=fedavg", NAMED), learners, tmp_path / "run")
    assert RunFolder(tmp_path / "run").read_records()[0].clients == ["hospital-a", "hospital-b"]
    with pytest.raises(
        ConfigError, match=r"federation\.names lists hospital-a, hospital-b, got learners of client-0, "
    ):
        federate(configure("protect.method=fedavg", NAMED), toys(), tmp_path / "other")


def test_other_learners_than_the_checkpoints_are_refused(half):
    others = {name.replace("client", "silo"): learner for name, learner in toys().items()}
    with pytest.raises(ParaAegisError):
        federate(toy_config(), others, half)


class Measuring(ToyLearner):
    """Its metrics are what it was told to return."""

    found: object = {}

    def evaluate(self, weights):
        return self.found


def test_a_metric_may_be_numpys(tmp_path):
    learners = {name: Measuring([np.ones(5)]) for name in ("a", "b")}
    learners["a"].found = {"accuracy": np.float32(0.5)}
    assert federate(toy_config(), learners, str(tmp_path)).metrics == {"accuracy": 0.5}


@pytest.mark.parametrize("found", [{"accuracy": "high"}, {"accuracy": None}, 0.5])
def test_a_metric_that_is_none_is_refused_by_its_kind(found, tmp_path):
    learners = {name: Measuring([np.ones(5)]) for name in ("a", "b")}
    learners["a"].found = found
    with pytest.raises(ParaAegisError, match=r"evaluate of a's learner .*(number|dict of numbers by name)"):
        federate(toy_config(), learners, tmp_path)


def test_another_number_of_learners_than_clients_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"federation\.clients is 2, got 3 learners"):
        federate(toy_config(), toys(3), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("settings", [
    ("protect.method=nothing",),
    ("federation.min_samples=11",),
    ("protect.method=paraaegis-feedback", "protect.ratio=0.01"),  # of five values none is elected
])  # fmt: skip
def test_a_federation_that_cannot_be_run_is_refused_before_anything_is_written(settings, tmp_path):
    with pytest.raises(ParaAegisError):
        federate(toy_config(*settings), toys(), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["a/b", "../up", ""])
def test_a_learner_may_have_any_name_or_is_refused_at_once(name, tmp_path):
    """A name that a checkpoint cannot hold must not be found out when the run is to go on."""
    learners = dict(zip([name, "other"], toys().values(), strict=True))
    try:
        with pytest.raises(StoppedError):
            federate(toy_config(), learners, tmp_path / "out", on_record=stop_at(1))
    except ConfigError:
        assert not (tmp_path / "out").exists()
        return
    assert federate(toy_config(), learners, tmp_path / "out").rounds == 3


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_metric_that_is_no_number_does_not_lose_the_run(value, tmp_path):
    learners = toys()
    for learner in learners.values():
        learner.evaluate = lambda weights: {"perplexity": value}
    with pytest.raises(StoppedError):
        federate(toy_config(), learners, tmp_path, on_record=stop_at(1))
    result = federate(toy_config(), learners, tmp_path)
    assert result.rounds == 3
    assert federate(toy_config(), learners, tmp_path).rounds == 3


class InPlace(ToyLearner):
    """One that changes what it is given, in the method of this name."""

    def __init__(self, method):
        super().__init__(np.ones((1, 4)))
        self.method = method

    def train(self, weights, number):
        if self.method == "train":
            weights += 1
        return super().train(weights, number)

    def apply(self, weights, delta):
        if self.method == "apply":
            delta += 1
        return super().apply(weights, delta)

    def evaluate(self, weights):
        if self.method == "evaluate":
            weights += 1
        return super().evaluate(weights)


@pytest.mark.parametrize("method", ["train", "apply", "evaluate"])
def test_a_learner_that_changes_what_it_is_given_is_stopped(method, tmp_path):
    config = configure("federation.clients=2", "federation.rounds=2", "protect.method=fedavg")
    with pytest.raises(LearnerError, match=f"{method} .*of .'s learner failed: ValueError: .*read-only"):
        federate(config, {"a": InPlace(method), "b": InPlace(method)}, tmp_path / "run")


def test_clients_with_different_models_stop_before_anything_is_mixed(tmp_path):
    learners = toys(3)
    learners["client-1"] = ToyLearner(np.ones((1, 6)))
    with pytest.raises(ParaAegisError, match="the model of client-1 has 6 values, that of client-0 5"):
        federate(toy_config("federation.clients=3"), learners, tmp_path)
    learners["client-1"] = ToyLearner(np.ones((1, 5)))
    learners["client-1"].initial = lambda: np.ones(5, np.float32)
    with pytest.raises(ParaAegisError, match=r"first models of client-0 and client-1 differ; .*torch\.manual_seed"):
        federate(toy_config("federation.clients=3"), learners, tmp_path)
    assert not (tmp_path / "rounds.jsonl").exists()
    assert not (tmp_path / "checkpoint.npz").exists()


def test_an_update_that_is_not_finite_stops_the_run_and_nothing_of_its_round_is_kept(tmp_path):
    learners = toys()
    learners["client-1"].updates = [np.ones(5, np.float32), np.full(5, np.nan, np.float32)]
    with pytest.raises(ParaAegisError, match="client-1 in round 2 gave NaN or infinity"):
        federate(toy_config(), learners, tmp_path)
    mended = toys()
    mended["client-1"].updates = [np.ones(5, np.float32), np.ones(5, np.float32)]
    assert federate(toy_config(), mended, tmp_path).rounds == 3


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.name)
def test_an_example_runs(path, tmp_path):
    done = subprocess.run(
        [sys.executable, "-W", "error", path], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip()


def test_a_run_with_secret_noise_that_goes_on_uses_no_order_twice(tmp_path):
    """The interrupted round may have been sent: the same order with other noise would link and average the two."""
    seen = []

    class Watched(ToyLearner):
        def evaluate(self, weights):
            return {"accuracy": 0.0}

    def learners():
        return {f"client-{i}": Watched(np.ones((1, 40))) for i in range(3)}

    def stop(line):
        if line.round == 2:
            raise KeyboardInterrupt

    config = configure("federation.clients=3", "federation.rounds=4", "privacy.noise=secret")
    with pytest.raises(KeyboardInterrupt):
        federate(config, learners(), tmp_path / "run", on_record=stop)
    attempts = RunFolder(tmp_path / "run").restore()[0].attempt
    federate(config, learners(), tmp_path / "run", on_record=seen.append)
    assert attempts == 0
    with pytest.raises(KeyboardInterrupt):
        federate(config, learners(), tmp_path / "again", on_record=stop)
    with pytest.raises(KeyboardInterrupt):
        federate(config, learners(), tmp_path / "again", on_record=stop)
    assert RunFolder(tmp_path / "again").restore()[0].attempt == 1
    assert [line.round for line in seen] == [1, 2, 3, 4]


@pytest.mark.parametrize("name", ["checkpoint.npz", "rounds.jsonl"])
def test_where_privacy_was_spent_a_damaged_file_is_no_reason_to_start_over(tmp_path, name):
    config = toy_config("federation.rounds=4", "privacy.noise=secret", "privacy.epsilon=1.0", "privacy.clip=1.0")

    with pytest.raises(StoppedError):
        federate(config, toys(), tmp_path, on_record=stop_at(2))
    (tmp_path / name).write_bytes(b"\x91" * 64 + b"\n")
    with pytest.raises(RunError, match=rf"{name} is damaged.*; restore the file, or choose another --out"):
        federate(config, toys(), tmp_path)


def test_where_nobody_knows_what_was_spent_starting_over_is_not_advised(tmp_path):
    settings = ("federation.rounds=4", "privacy.noise=secret", "privacy.epsilon=1.0", "privacy.clip=1.0")

    with pytest.raises(StoppedError):
        federate(toy_config(*settings), toys(), tmp_path, on_record=stop_at(2))
    (tmp_path / "ledger.jsonl").unlink()
    (tmp_path / "checkpoint.npz").write_bytes(b"no checkpoint")
    with pytest.raises(RunError) as caught:
        federate(toy_config(*settings), toys(), tmp_path)
    assert "--fresh" not in str(caught.value)
