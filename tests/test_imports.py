"""Nothing heavy is loaded by who does not use it, and no file has two subjects."""

import subprocess
import sys
from pathlib import Path

import pytest

import paraaegis

HEAVY = {"torch", "tenseal", "flwr", "plotly", "sklearn"}
FOLDERS = Path(paraaegis.__file__).parent, Path(__file__).parent
FILES = [path for folder in FOLDERS for path in sorted(folder.rglob("*.py"))]


def loaded(program, *arguments):
    """The heavy packages that a program in a fresh interpreter loads."""
    after = f"import sys\nprint('\\nloaded:', *(set(sys.modules) & {HEAVY!r}))"
    done = subprocess.run(
        [sys.executable, "-c", f"{program}\n{after}", *arguments],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines()[-1].removeprefix("loaded:").split())


COMMAND = """
import sys
from paraaegis.cli import main
try:
    main()
except SystemExit as stopped:
    if stopped.code: raise
"""


def test_the_package_itself_loads_nothing_heavy():
    assert loaded("import paraaegis; paraaegis.Config(); paraaegis.ParaAegisError; paraaegis.Learner") == set()


def test_the_question_can_be_answered_with_yes():
    assert loaded("import torch") == {"torch"}


@pytest.mark.parametrize("arguments", [("--help",), ("run", "--help"), ("--version",)], ids=" ".join)
def test_help_loads_nothing_heavy(arguments):
    assert loaded(COMMAND, *arguments) == set()


def test_a_plain_run_on_digits_loads_no_encryption_network_or_plots(tmp_path):
    settings = [
        "protect.method=fedavg",
        "federation.clients=2",
        "federation.rounds=1",
        "model.name=mlp",
        "train.epochs=1",
    ]
    words = [word for setting in settings for word in ("--set", setting)]
    assert loaded(COMMAND, "run", "--out", str(tmp_path / "out"), *words) == {"torch", "sklearn"}


def test_a_federation_of_ones_own_learners_loads_no_torch(tmp_path):
    """Not with real encryption either."""
    program = (
        "from pathlib import Path; from toy import ToyLearner; import numpy as np\n"
        "from paraaegis.config import make_config; from paraaegis.runs.run import federate\n"
        "config = make_config({'federation': {'clients': 1, 'rounds': 1}})\n"
        f"federate(config, {{'a': ToyLearner(np.ones((1, 9)))}}, Path({str(tmp_path / 'out')!r}))\n"
    )
    here = f"import sys; sys.path.insert(0, {str(Path(__file__).parent / 'support')!r})\n"
    assert loaded(here + program) == {"tenseal"}


def test_the_public_names_are_these():
    assert sorted(paraaegis.__all__) == [
        "Config",
        "Learner",
        "ParaAegisError",
        "Result",
        "__version__",
        "federate",
        "load_config",
        "torch_learner",
    ]
    assert all(hasattr(paraaegis, name) for name in paraaegis.__all__)


def test_the_type_information_is_shipped():
    assert (Path(paraaegis.__file__).parent / "py.typed").exists()


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_source_file_has_one_subject(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 400
