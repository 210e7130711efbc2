"""One command, one run, one folder: what is written and what is shown."""

import json
import shutil
import subprocess
import tomllib

import pytest
import torch

from commands import COMMAND, DIGITS, QUICK, call, words
from paraaegis.config import make_config
from paraaegis.deploy.local_federation import prepare
from paraaegis.errors import RunError
from paraaegis.launch import run
from paraaegis.learn import devices
from paraaegis.learn.data import load
from paraaegis.learn.models import build
from paraaegis.runs.guarantees import spending


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
    assert caplog.text.count("supports sums within ±45, but the BatchNorm statistics of this model") == times


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
    assert "model.pt is missing; --fresh starts over" in caplog.text
    (tmp_path / "moved" / "ledger.jsonl").unlink()
    code, _, told = call(monkeypatch, capsys, *again)
    assert code == 2
    assert "ledger.jsonl is missing" in told


@pytest.mark.parametrize("left", [["result.json", "rounds.jsonl", "ledger.jsonl"], ["rounds.jsonl"]])
def test_a_result_whose_configuration_is_gone_is_not_given_out_for_another(finished, tmp_path, left):
    copy = shutil.copytree(finished[1], tmp_path / "copy")
    for path in copy.iterdir():
        if path.name not in {".lock", *left}:
            path.unlink()
    another = make_config({}, [*QUICK, "protect.method=fedavg", "seed=1", "federation.rounds=1"])
    refused = f"config.toml is missing, but the folder still contains {', '.join(left)} from an earlier run"
    with pytest.raises(RunError, match=f"{refused}.* another --out") as error:
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
    assert "ledger.jsonl is incomplete: it has nothing from client-" in told


def test_a_ledger_that_lost_one_of_a_clients_parts_is_not_whole(tmp_path):
    run(make_config({}, [*QUICK, "federation.rounds=1", "protect.method=paraaegis-static"]), tmp_path / "run")
    ledger = tmp_path / "run" / "ledger.jsonl"
    spending(tmp_path / "run")
    ledger.write_bytes(ledger.read_bytes()[:-10])  # as a kill cuts it
    with pytest.raises(RunError, match="is incomplete: it has no 'outside' from client-"):
        spending(tmp_path / "run")


@pytest.mark.parametrize("what", ["votes", "metrics"])
def test_a_ledger_without_the_values_of_a_round_is_not_whole(finished, tmp_path, what):
    copy = shutil.copytree(finished[1], tmp_path / "copy")
    lines = [json.loads(line) for line in (copy / "ledger.jsonl").read_text().splitlines()]
    lines[-1]["what"] = what
    (copy / "ledger.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(RunError, match="it has nothing from client-"):
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
