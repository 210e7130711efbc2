"""What documents show about own models works as written."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
HERE = Path(sys.executable).parent


def blocks(document, kind):
    return [code for language, code in BLOCK.findall((ROOT / document).read_text(encoding="utf-8")) if language == kind]


def in_folder(folder, *command):
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def named(code):
    return re.match(r"# (\S+)\n", code)[1]


@pytest.mark.parametrize("document", ["README.md", "docs/own-model.md"])
def test_every_script_runs_as_written(document, tmp_path):
    scripts = blocks(document, "python")
    assert scripts
    for code in scripts:
        (tmp_path / named(code)).write_text(code)
        in_folder(tmp_path, sys.executable, named(code))


def test_every_command_on_the_configuration_runs_as_written(tmp_path):
    for code in (*blocks("docs/own-model.md", "python"), *blocks("docs/own-model.md", "toml")):
        (tmp_path / named(code)).write_text(code)
    (commands,) = blocks("docs/own-model.md", "")
    for line in commands.splitlines():
        program, *arguments = line.split()
        in_folder(tmp_path, HERE / program, *arguments)
    assert (tmp_path / "report.html").exists()


def test_the_example_of_five_hospitals_runs(tmp_path):
    shutil.copytree(ROOT / "examples" / "five_hospitals", tmp_path / "five")
    shown = in_folder(tmp_path / "five", HERE / "paraaegis", "run", "study.toml", "--out", "runs/first")
    assert "recall_malignant" in shown
    assert (tmp_path / "five" / "runs" / "first" / "model.pt").exists()


def test_a_new_study_runs_with_its_test_and_the_commands_that_it_names(tmp_path):
    said = in_folder(tmp_path, HERE / "paraaegis", "new", "my-study")
    commands = [line.split("#")[0].split() for line in said.splitlines() if line.startswith("  paraaegis")]
    assert len(commands) == 4
    for program, *arguments in commands:
        in_folder(tmp_path / "my-study", HERE / program, *arguments)
    in_folder(tmp_path / "my-study", sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider")
    refused = subprocess.run(
        [HERE / "paraaegis", "new", tmp_path / "my-study"], capture_output=True, text=True, check=False
    )
    assert refused.returncode == 2
    assert "will not be overwritten" in refused.stderr
