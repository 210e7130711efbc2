"""A run that was killed and started again ends with the same bits as one that was not."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from paraaegis.config import load_config
from paraaegis.launch import run
from paraaegis.runs.folder import RunFolder

pytestmark = pytest.mark.timeout(900)  # hundreds of runs, which take minutes on a busy machine
SUPPORT = Path(__file__).parents[1] / "support"
DIGITS = SUPPORT.parents[1] / "configs" / "digits.toml"
COMMAND = str(Path(sys.executable).with_name("paraaegis"))
METHODS = {
    "feedback": ["protect.method=paraaegis-feedback", "protect.ratio=0.25"],
    "static": ["protect.method=paraaegis-static", "protect.ratio=0.25", "engine.checkpoint=2", "privacy.epsilon=8"],
}

KILLED = METHODS | {"rlwe": [*METHODS["feedback"], "protect.cipher=rlwe", "engine.checkpoint=2"]}


# At every write, with learners that need no torch


def kill_everywhere(root, settings):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(SUPPORT), *sys.path])}
    done = subprocess.run(
        [sys.executable, "-W", "error", SUPPORT / "killed.py", root, *settings],
        env=environment, capture_output=True, text=True, check=False, timeout=800,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    with ThreadPoolExecutor(2) as pool:
        found = pool.map(kill_everywhere, [tmp_path_factory.mktemp(name) for name in KILLED], KILLED.values())
        return dict(zip(KILLED, found, strict=True))


@pytest.mark.parametrize("method", KILLED)
def test_killed_at_any_write_a_run_goes_on_to_the_same_lines(killed, method):
    found = killed[method]
    assert len(found["killed"]) > 15
    assert all(outcome["died"] for outcome in found["killed"])
    expected = (found["whole"]["rounds"], found["whole"]["lines"])
    assert [
        i for i, outcome in enumerate(found["killed"], 1) if (outcome["rounds"], outcome["lines"]) != expected
    ] == []


@pytest.mark.parametrize("method", KILLED)
def test_killed_at_any_write_a_run_leaves_no_secret_and_no_scraps_in_the_end(killed, method):
    found = killed[method]
    last = ["last.npz"] if method in ("feedback", "rlwe") else []
    logs = ["learners.json", "ledger.jsonl", "metrics.jsonl", "model.npy", "result.json"]
    expected = ["best.npy", "config.toml", *last, *logs]
    assert found["whole"]["files"] == [".lock", *expected, "rounds.jsonl"]
    left = {i: outcome["files"] for i, outcome in enumerate(found["killed"], 1)}
    assert {i: files for i, files in left.items() if files != found["whole"]["files"]} == {}


# From outside, on digits, through the command line


def settings_of(method):
    quick = ["federation.clients=4", "federation.rounds=5", "model.name=mlp", "train.epochs=5", "engine.workers=1"]
    return [*quick, *METHODS[method]]


def started(method, folder):
    settings = [word for setting in settings_of(method) for word in ("--set", setting)]
    return subprocess.Popen(
        [COMMAND, "run", DIGITS, "--out", folder, *settings],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def rounds_of(folder):
    path = folder / "rounds.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def killed_after(lines, method, folder):
    """Kill the run once this many lines are there; its exit code, and who could read its secrets until then."""
    with started(method, folder) as process:
        deadline = time.monotonic() + 120
        while rounds_of(folder) < lines and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.005)
        ended = process.poll() is not None
        process.kill()
        code = process.wait(60)
    kept = [folder / "keys", folder / "checkpoint.npz", *(folder / "history").glob("*")]
    secrets = [path for path in kept if path.exists()]
    return code, None if ended else max(path.stat().st_mode & 0o777 for path in secrets)


def killed_and_ended(method, folder):
    first = killed_after({"feedback": 1, "static": 3}[method], method, folder)
    copy = shutil.copytree(folder, folder.with_name("copy"))
    RunFolder(copy).restore()  # takes back what no checkpoint holds
    with started(method, folder) as process:
        _, told = process.communicate(timeout=120)
        return [*first, process.returncode, told, rounds_of(copy)]


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """For each method: how its two lives went, its folder, and the folder of a run that was left alone."""
    with ThreadPoolExecutor(2) as pool:
        folders = {method: tmp_path_factory.mktemp("digits") / method for method in METHODS}
        lives = dict(zip(METHODS, pool.map(killed_and_ended, METHODS, folders.values()), strict=True))
    whole = {method: folder.with_name("whole") for method, folder in folders.items()}
    for method, folder in whole.items():
        run(load_config(DIGITS, settings_of(method)), folder)
    return {method: (lives[method], folders[method], whole[method]) for method in METHODS}


def lines_of(folder):
    """Without what is measured: seconds, and the size of compressed ciphertexts."""
    lines = [json.loads(text) for text in (folder / "rounds.jsonl").read_text().splitlines()]
    for line in lines:
        del line["seconds"]
        line["bytes_up"].pop("ckks"), line["bytes_down"].pop("ckks")
    return lines


@pytest.mark.parametrize("method", METHODS)
def test_a_digits_run_that_was_killed_ends_with_the_same_model(digits, method):
    lives, folder, whole = digits[method]
    kept = lives.pop()
    assert lives == [-signal.SIGKILL, 0o600, 0, f"continuing after round {kept}\n" if kept else ""]
    model, expected = (torch.load(path / "model.pt", weights_only=True) for path in (folder, whole))
    assert model.keys() == expected.keys()
    assert all(torch.equal(model[name], expected[name]) for name in expected)


@pytest.mark.parametrize("method", METHODS)
def test_a_digits_run_that_was_killed_ends_with_the_same_lines(digits, method):
    _, folder, whole = digits[method]
    assert len(lines_of(whole)) == 5
    assert lines_of(folder) == lines_of(whole)


@pytest.mark.parametrize("method", METHODS)
def test_keys_are_their_owners_alone_while_a_run_goes_on_and_gone_afterwards(digits, method):
    lives, folder, whole = digits[method]
    assert lives[1] == 0o600
    for path in (folder, whole):
        assert not (path / "keys").exists()
        assert not (path / "checkpoint.npz").exists()
