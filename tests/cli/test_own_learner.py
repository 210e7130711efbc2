"""Learners of one's own on the command line: found, recorded, refused, and imported only by what trains."""

import json
import sys
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from commands import call
from paraaegis.report.collect import collect

CODE = """
from pathlib import Path
import numpy as np
from paraaegis import Learner

with (Path(__file__).parent / "imported").open("a") as log:
    log.write("once\\n")

class Site(Learner):
    def __init__(self, samples):
        self.samples = samples

    def initial(self):
        return np.zeros(6, dtype=np.float32)

    def train(self, weights, number):
        return weights + np.arange(6, dtype=np.float32) / 10

    def evaluate(self, weights):
        return {"auc": 1 - 1 / (1 + weights.sum())}

def make(config, client):
    return Site(10 + config.names.index(client))
"""
STUDY = """
learner = "%s:make"
[federation]
names = ["north", "south", "west"]
rounds = 2
[protect]
method = "%s"
ratio = 0.5
"""


@pytest.fixture
def study(tmp_path, monkeypatch):
    """A study in a folder that is not the current one; its module has a name of its own in every test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.setenv("PYTHONPATH", "")
    module = f"site_{tmp_path.name.replace('-', '_')}"
    folder = tmp_path / "study"
    folder.mkdir()
    (folder / f"{module}.py").write_text(CODE)
    (folder / "study.toml").write_text(STUDY % (module, "paraaegis-feedback"))
    yield Study(folder, module, monkeypatch)
    sys.modules.pop(module, None)


class Study:
    def __init__(self, folder, module, monkeypatch):
        self.folder, self.module, self.monkeypatch = folder, module, monkeypatch
        self.file, self.config = folder / f"{module}.py", folder / "study.toml"

    def change(self, old, new):
        """Change the code, as seen by the next command."""
        text = self.file.read_text()
        assert old in text
        self.file.write_text(text.replace(old, new))
        sys.modules.pop(self.module, None)
        self.monkeypatch.setattr(sys, "dont_write_bytecode", True)

    @property
    def imports(self):
        log = self.folder / "imported"
        return len(log.read_text().splitlines()) if log.exists() else 0


def read(path):
    return json.loads(Path(path).read_text())


@pytest.fixture
def paraaegis(monkeypatch, capsys):
    return lambda *arguments: call(monkeypatch, capsys, *arguments)


def test_a_run_finds_the_module_next_to_the_configuration_and_keeps_its_model(study, paraaegis):
    status, out, _ = paraaegis("run", study.config, "--out", "run")
    assert status == 0
    assert "auc" in out
    model = np.load("run/model.npy")
    np.testing.assert_allclose(model[-1], 1.0, atol=1e-5)  # 0.5 in each of two rounds


def test_where_the_model_came_from_is_recorded_and_nothing_about_digits(study, paraaegis):
    paraaegis("run", study.config, "--out", "run")
    origin = read("run/learners.json")
    assert origin["code"] == [sha256(study.file.read_bytes()).hexdigest()]
    assert origin["samples"] == {"north": 10, "south": 11, "west": 12}
    assert origin["length"] == 6
    stored = Path("run/config.toml").read_text()
    assert f'learner = "{study.module}:make"' in stored
    assert "[model]" not in stored
    assert "digits" not in stored


def test_only_commands_that_train_import_the_code(study, paraaegis):
    assert paraaegis("privacy", study.config)[0] == 0
    assert paraaegis("plan", study.config, "--model", "1000")[0] == 0
    assert study.imports == 0
    paraaegis("run", study.config, "--out", "run")
    assert study.imports == 1
    sys.modules.pop(study.module)
    assert paraaegis("report", "run", "--out", "report.html")[0] == 0
    assert paraaegis("privacy", "run")[0] == 0
    assert study.imports == 1


def test_a_report_titles_the_run_by_its_own_learner(study, paraaegis):
    paraaegis("run", study.config, "--out", "run")
    (run,), problems = collect([Path("run")])
    assert not problems
    assert (run.metric, run.value) == ("auc", pytest.approx(read("run/result.json")["metrics"]["auc"]))
    assert run.config.subject == f"learners {study.module}:make"


def test_two_learners_do_not_share_a_default_folder(study, paraaegis):
    study.change("def make(", "def other(config, client):\n    return Site(10)\n\ndef make(")
    learners = [f"{study.module}:{name}" for name in ("make", "other")]
    assert [paraaegis("run", study.config, "--set", f"learner={name}")[0] for name in learners] == [0, 0]
    folders = sorted(Path("runs").glob("paraaegis-feedback-*"))
    assert sorted(read(folder / "learners.json")["learner"] for folder in folders) == learners


def test_a_finished_run_is_refused_when_its_code_has_changed(study, paraaegis):
    paraaegis("run", study.config, "--out", "run")
    study.change("weights.sum()", "weights.max()")
    status, _, err = paraaegis("run", study.config, "--out", "run")
    assert status == 2
    assert f"the code of {study.module}:make has changed since it finished: restore the file to show or extend" in err


@pytest.mark.parametrize(("old", "new", "why"), [
    ("np.zeros(6", "np.ones(6", "its first model had other values"),
    ("(6", "(7", "its model had 6 values, now 7"),
    ("10 + ", "20 + ", "north had 10 samples, now 20"),
])  # fmt: skip
def test_a_folder_is_not_continued_with_another_model_or_other_data(study, paraaegis, old, new, why):
    paraaegis("run", study.config, "--out", "run")
    study.change(old, new)
    status, _, err = paraaegis("run", study.config, "--out", "run")
    assert status == 2
    assert why in err
    assert "--fresh" in err


def test_an_interrupted_run_continues_with_mended_code_and_says_so(study, paraaegis, caplog):
    study.change("return weights + np", "assert number < 2, 'no data left'\n        return weights + np")
    status, _, err = paraaegis("run", study.config, "--out", "run")
    assert (status, "train in round 2 of" in err, "no data left" in err) == (2, True, True)
    study.change("assert number < 2, 'no data left'", "assert number < 9")
    assert paraaegis("run", study.config, "--out", "run")[0] == 0
    assert "has changed since the run began; continuing with it" in caplog.text
    assert len(read("run/learners.json")["code"]) == 2


@pytest.mark.parametrize(("learner", "said"), [
    ("nowhere:make", "there is no module nowhere; put nowhere.py next to the configuration file"),
    ("{}:mak", "has no function mak (did you mean 'make'?)"),
    ("{}", 'learner has the form "module:function"'),
    ("{}.py:make", "; leave out .py"),
    ("site:make", "standard library has a module site; give your file another name"),
    ("{}:Site", "Site is called as Site(config, client), but it is defined as Site(samples)"),
])  # fmt: skip
def test_a_learner_that_cannot_be_found_is_refused(study, paraaegis, learner, said):
    name = learner.format(study.module)
    study.config.write_text(study.config.read_text().replace(f"{study.module}:make", name))
    status, _, err = paraaegis("run", study.config, "--out", "run")
    assert status != 0
    assert said in " ".join(err.split())


@pytest.mark.parametrize(("old", "new", "said"), [
    ("return Site(", "return print(", "must return a learner for north, such as torch_learner(…), got NoneType"),
    ("return Site(", "raise KeyError('age')  # (", "make failed for north: KeyError: 'age'"),
    ("from paraaegis", "import nowhere_else\nfrom paraaegis", "No module named 'nowhere_else'"),
])  # fmt: skip
def test_an_error_in_the_code_names_the_client_and_shows_where(study, paraaegis, old, new, said):
    study.change(old, new)
    status, _, err = paraaegis("run", study.config, "--out", "run")
    assert status == 2
    assert said in err
    assert (study.file.name in err.replace(said, "")) == ("print" not in new)  # the traceback


def test_a_comparison_runs_ones_own_learners(study, paraaegis):
    other = study.folder / "plain.toml"
    other.write_text(STUDY % (study.module, "fedavg"))
    status, out, _ = paraaegis("compare", other, study.config, "--out", "compared")
    assert status == 0
    assert "auc" in out
    table = read("compared/table.json")
    assert table["metric"] == "auc"
    assert {row["method"] for row in table["rows"]} == {"fedavg", "paraaegis-feedback"}


def test_tables_that_a_run_with_its_own_learners_would_ignore_are_refused(study, paraaegis):
    status, _, err = paraaegis("run", study.config, "--set", "model.name=mlp", "--out", "run")
    assert status != 0
    assert "model.name = 'mlp' has no effect" in err
