"""What cannot be run is refused before anything is written."""

import subprocess

import pytest

from commands import COMMAND, DIGITS, QUICK, call, words

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
