"""The digest tells runs apart, and nothing that may differ between silos."""

import tomllib

import msgspec
import pytest

from paraaegis.config import Config, make_config
from paraaegis.errors import ConfigError


def test_the_digest_without_names_is_what_it_was_before_clients_had_names():
    """Runs that lie in folders are found, and go on."""
    before = ["privacy.calibration=paper", "protect.method=paraaegis-static"]  # the defaults until then
    assert make_config({}, before).digest() == "70039d5e7b399fd067089ae7767afa04d1e817caadcb8acc0869dabe79a4908a"
    three = make_config({}, ["federation.clients=3", "protect.ratio=1", *before])
    assert three.digest() == "40a2b188e72f3b104603f4f8b65bee6a7d50e509b94d9b90dd23ba6fabc01bc3"


def test_files_and_digests_contain_a_newer_key_only_where_it_was_changed():
    plain, scheduled = Config(), make_config({}, ["train.schedule=cosine"])
    assert list(plain.tables()["train"]) == ["epochs", "batch", "optimizer", "lr", "momentum", "server_lr"]
    assert scheduled.tables()["train"] == {**plain.tables()["train"], "schedule": "cosine"}
    assert make_config(scheduled.tables()) == scheduled
    assert scheduled.digest() != plain.digest()
    assert "cipher" not in plain.tables()["protect"]


def test_a_file_of_ones_own_learners_states_no_training_that_they_may_not_use():
    changed = make_config({}, ["learner=sites:make", "train.stop_after=3", "data.folder=here"])
    assert (changed.tables()["train"], changed.tables()["data"]) == ({"stop_after": 3}, {"folder": "here"})
    assert make_config(changed.tables()) == changed
    assert not {"train", "data", "model"} & make_config({}, ["learner=sites:make"]).tables().keys()


def leaves(table, key=""):
    for name, value in table.items():
        path = f"{key}.{name}" if key else name
        yield from leaves(value, path) if isinstance(value, dict) else [(path, value)]


TEN = [f"hospital-{letter}" for letter in "abcdefghij"]
OTHER = {"federation.names": TEN, "data.folder": "elsewhere", "data.name": "cifar10", "model.name": "mlp",
         "protect.profile": "compact", "protect.method": "fedavg", "protect.ratio": 0.2,
         "federation.quorum": 3}  # fmt: skip


def another(path, value):
    """A legal value of this key that is not `value`."""
    if path in OTHER:
        return OTHER[path]
    if path in ("privacy.sigma", "privacy.inside_clip", "train.last_lr"):
        return 0.5
    if isinstance(value, bool):
        return str(not value).lower()
    if isinstance(value, int):
        return value + 1
    if isinstance(value, float):
        return value / 2
    for word in (
        "uniform",
        "dirichlet",
        "rlwe",
        "adam",
        "min",
        "paper",
        "secret",
        "cpu",
        "cosine",
        "matrix",
        "variance",
        "up",
    ):
        try:
            make_config({}, [f"{path}={word}"])
        except ConfigError:
            continue
        return word
    return None  # a key with a single legal value


TIGHT = ["privacy.calibration=tight", "federation.fraction=0.1", "federation.rounds=10"]
RECORD = ["privacy.unit=record", "privacy.calibration=tight"]
CHANGES = [
    (path, changed)
    for path, value in leaves(msgspec.to_builtins(Config()))
    if (changed := another(path, value)) is not None
]


@pytest.mark.parametrize(("path", "changed"), CHANGES, ids=[path for path, _ in CHANGES])
def test_the_digest_ignores_what_may_differ_between_silos_and_nothing_else(path, changed):
    needs = {"protect.decay": ["protect.method=paraaegis-dynamic"], "privacy.participations": TIGHT,
             "train.last_lr": ["train.schedule=linear"],
             "privacy.sample_rate": RECORD, "privacy.group": RECORD, "privacy.unit": RECORD[1:]}  # fmt: skip
    settings = [f"{path}={changed}", *needs.get(path, [])]
    base = make_config({}, settings[1:])
    ignored = path.startswith("engine.") or path in ("data.folder", "privacy.attempts")
    assert (make_config({}, settings).digest() == base.digest()) == ignored


def test_the_digest_does_not_depend_on_how_a_value_was_written():
    tables = tomllib.loads("[protect]\nratio = 0.10\n[federation]\nclients = 10")
    assert make_config(tables).digest() == Config().digest()
