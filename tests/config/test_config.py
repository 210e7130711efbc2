"""A configuration is checked whole before any work, and says what is wrong with it."""

import math
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import msgspec
import numpy as np
import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from paraaegis.comparisons.preset import cells_of, read_preset
from paraaegis.config import Config, Section, load_config, make_config
from paraaegis.config.listing import all_keys
from paraaegis.errors import ConfigError

PRESET = 'title = "t"\nsplits = { iid = {} }\n[[rows]]\nlabel = "a"\n'
DIGITS = Path(__file__).parents[2] / "configs" / "digits.toml"


def refusal(*settings, raw=None):
    with pytest.raises(ConfigError) as caught:
        make_config(raw or {}, settings)
    return str(caught.value)


def test_the_defaults_are_a_configuration():
    assert make_config({}) == Config()


def test_the_shipped_file_is_a_configuration():
    assert load_config(DIGITS).data.name == "digits"


def test_a_resolved_configuration_reads_back_from_its_own_toml(tmp_path):
    names = "federation.names=['hospital-a', 'hospital-b']"
    config = make_config({}, ["privacy.epsilon=inf", "protect.ratio=0.25", "data.folder=/a b", names])
    path = tmp_path / "config.toml"
    path.write_text(tomli_w.dumps(msgspec.to_builtins(config)))
    assert load_config(path) == config


@pytest.mark.parametrize(
    ("raw", "key", "hint"),
    [
        ({"protekt": {}}, "'protekt'", "'protect'"),
        ({"protect": {"ration": 0.1}}, "'protect.ration'", "'ratio'"),
        ({"federation": {"zebra": 1}}, "'federation.zebra'", "clients, names, rounds"),
        ({"zebra": 1}, "'zebra'", "seed, learner, federation"),
    ],
)
def test_an_unknown_key_is_named_with_what_is_allowed(raw, key, hint):
    message = refusal(raw=raw)
    assert message.startswith(f"unknown key {key}")
    assert hint in message


@pytest.mark.parametrize(
    ("setting", "parts"),
    [
        ("protect.ratio=1.5", ["protect.ratio", "<= 1", "1.5"]),
        ("protect.ratio=-0.1", ["protect.ratio", ">= 0", "-0.1"]),
        ("protect.decay=0", ["protect.decay", "> 0", "got 0"]),
        ("privacy.clip=0", ["privacy.clip", "> 0", "got 0"]),
        ("privacy.clip=-1.0", ["privacy.clip", "> 0", "-1.0"]),
        ("privacy.delta=1.0", ["privacy.delta", "< 1", "1.0"]),
        ("privacy.epsilon=0", ["privacy.epsilon", "> 0", "got 0"]),
        ("federation.clients=-1", ["federation.clients", ">= 0", "got -1"]),
        ("federation.clients=2.5", ["federation.clients", "int", "2.5"]),
        ("federation.rounds=true", ["federation.rounds", "int", "True"]),
        ("federation.fraction=0", ["federation.fraction", "> 0", "got 0"]),
        ("federation=3", ["federation is a table, got 3; set one of its keys: federation.clients, "]),
        ("federation.names=a,b", ['federation.names is a list, such as ["a", "b"], got \'a,b\'']),
        ("federation.names=['a', 3]", ["federation.names[1]: expected str, got 3"]),
        ("seed=-1", ["seed", ">= 0", "-1"]),
        ("seed=one", ["seed: expected int, got 'one'"]),
        ("data.alpha=0", ["data.alpha", "> 0", "got 0"]),
        ("train.momentum=1.0", ["train.momentum", "< 1", "1.0"]),
        ("protect.strategy=mux", ["protect.strategy", "max, min, rand", "'mux'", "did you mean 'max'"]),
        ("data.split=even", ["data.split", "iid, dirichlet", "'even'"]),
        ("engine.name=spark", ["engine.name", "local, flower", "'spark'"]),
    ],
)
def test_an_impossible_value_is_named_with_what_is_allowed(setting, parts):
    message = refusal(setting)
    assert [part for part in parts if part not in message] == []


@pytest.mark.parametrize(
    "key",
    [
        "federation.fraction",
        "data.alpha",
        "train.lr",
        "train.momentum",
        "protect.ratio",
        "protect.decay",
        "privacy.epsilon",
        "privacy.delta",
        "privacy.clip",
    ],
)
def test_nan_is_no_value_of_any_key(key):
    message = refusal(f"{key}=nan")
    assert key in message
    assert "nan" in message


@pytest.mark.parametrize(
    "key", ["train.lr", "train.server_lr", "data.alpha", "privacy.clip", "privacy.sigma", "privacy.inside_clip"]
)
def test_what_no_float32_holds_is_refused_by_its_name(key):
    assert f"{key} must be at most 1e+30, got 1e+300" in refusal(f"{key}=1e300")


@pytest.mark.parametrize("key", ["train.lr", "train.server_lr", "data.alpha", "privacy.sigma", "privacy.inside_clip"])
def test_what_must_be_finite_is_refused_by_its_name(key):
    assert f"{key} must be at most 1e+30, got inf" in refusal(f"{key}=inf")


@pytest.mark.parametrize(
    ("setting", "hint"), [("ratio=0.1", "protect.ratio"), ("train.rounds=3", "federation.rounds"), ("sed=1", "seed")]
)
def test_a_key_in_the_wrong_table_is_pointed_to_its_own(setting, hint):
    assert f"did you mean {hint!r}?" in refusal(setting)


@pytest.mark.parametrize(("settings", "told"), [((), "typo.toml: unknown key"), (["seed=1"], "typo.toml as changed: ")])
def test_a_refusal_names_the_file(settings, told, tmp_path):
    (tmp_path / "typo.toml").write_text("[protect]\nmetod = 'fedavg'\n")
    with pytest.raises(ConfigError, match=told):
        load_config(tmp_path / "typo.toml", settings)


def test_a_seed_that_no_generator_takes_is_refused():
    message = refusal(f"seed={2**64}")
    assert "seed" in message
    assert str(2**64) in message


def test_noise_needs_a_finite_clip():
    message = refusal("privacy.clip=inf")
    assert "privacy.clip" in message
    assert "epsilon" in message
    assert math.isinf(make_config({}, ["privacy.clip=inf", "privacy.epsilon=inf"]).privacy.clip)


@pytest.mark.parametrize("setting", ["privacy.delta=1e-310", "federation.rounds=10000000"])
def test_what_cannot_be_worked_out_is_refused(setting):
    assert setting.partition("=")[0] in refusal(setting)


def test_noise_that_is_given_is_not_dropped_for_want_of_a_budget():
    assert "privacy.sigma = 0.5 asks for noise" in refusal("privacy.sigma=0.5", "privacy.epsilon=inf")


def test_a_quorum_cannot_exceed_the_clients_of_a_round():
    message = refusal("federation.clients=10", "federation.fraction=0.5", "federation.quorum=6")
    assert "federation.quorum" in message
    assert "5" in message
    assert "6" in message
    assert make_config({}, ["federation.clients=10", "federation.fraction=0.5", "federation.quorum=5"])


@pytest.mark.parametrize(
    ("setting", "read", "value"),
    [
        ("seed=3", lambda c: c.seed, 3),
        ("protect.ratio=1", lambda c: c.protect.ratio, 1.0),
        ("protect.ratio=1e-2", lambda c: c.protect.ratio, 0.01),
        (" protect.strategy =min", lambda c: c.protect.strategy, "min"),
        ('protect.strategy="min"', lambda c: c.protect.strategy, "min"),
        ("data.folder=/some/where", lambda c: c.data.folder, "/some/where"),
        ("data.folder=a=b", lambda c: c.data.folder, "a=b"),
        ("data.folder=", lambda c: c.data.folder, ""),
        ("privacy.epsilon=inf", lambda c: c.privacy.epsilon, math.inf),
    ],
)
def test_a_setting_is_read_as_toml_and_else_as_text(setting, read, value):
    assert read(make_config({}, [setting])) == value


@pytest.mark.parametrize("setting", ["ratio", "=3", " =3", ""])
def test_a_setting_without_key_or_value_is_refused(setting):
    assert repr(setting) in refusal(setting)


def test_a_setting_cannot_reach_into_a_value():
    assert "seed" in refusal("seed.deep=1", raw={"seed": 1})


def test_the_last_setting_wins_over_the_file_and_leaves_it_untouched(tmp_path):
    path = tmp_path / "c.toml"
    path.write_text("seed = 1\n[protect]\nratio = 0.5\n")
    config = load_config(path, ["protect.ratio=0.2", "protect.ratio=0.3"])
    assert (config.seed, config.protect.ratio) == (1, 0.3)
    raw = {"protect": {"ratio": 0.5}}
    make_config(raw, ["protect.ratio=0.2"])
    assert raw == {"protect": {"ratio": 0.5}}


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path):
    path = tmp_path / "windows.toml"
    path.write_text("seed = 7\n", encoding="utf-8-sig")
    assert load_config(path).seed == 7
    path.write_text(PRESET, encoding="utf-8-sig")
    assert [cell.label for cell in cells_of(read_preset(str(path)))] == ["a"]


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    missing = tmp_path / "none.toml"
    with pytest.raises(ConfigError, match=r"cannot read .*none\.toml"):
        load_config(missing)
    with pytest.raises(ConfigError, match="cannot read"):
        load_config(tmp_path)


@pytest.mark.parametrize("content", [b"seed = ", b"\xff\xfe", b"seed = 1\nseed = 2\n"])
def test_a_file_that_is_no_toml_is_refused(tmp_path, content):
    path = tmp_path / "bad.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="not valid TOML"):
        load_config(path)


TABLES = {name: type(table) for name, table in msgspec.structs.asdict(Config()).items() if isinstance(table, Section)}
KEYS = [tuple(key.name.split(".")) for key in all_keys() if "." in key.name]
VALUES = st.sampled_from([-1, 0, 1, 3, 2**70, -0.5, 0.5, 1.5, 1e300, math.inf, math.nan, True, "Tight", "tight", "max",
                          None, [], ["a"], {}, {"x": 1}])  # fmt: skip


def outcome(build):
    try:
        return build()
    except ConfigError as error:
        return str(error)


@given(key=st.sampled_from(KEYS), value=VALUES)
def test_a_configuration_built_in_python_is_checked_as_one_from_a_file(key, value):
    """The same result or the same refusal, from the constructor, by replacement and from nested tables."""
    table, name = key
    read = outcome(lambda: make_config({table: {name: value}}))
    built = outcome(lambda: Config(**{table: TABLES[table](**{name: value})}))
    unset = {"clients": 0} if name == "names" else {}  # else the names would have to be ten
    replaced = outcome(
        lambda: replace(Config(), **{table: replace(getattr(Config(), table), **unset, **{name: value})})
    )
    assert built == replaced == read
    if isinstance(read, Config):
        assert built.digest() == replaced.digest() == read.digest()


@pytest.mark.parametrize(
    ("build", "told"),
    [
        (lambda: TABLES["privacy"](calibration="Tight"), "privacy.calibration must be one of paper, tight, got 'Tight' "
         "(did you mean 'tight'?)"),
        (lambda: TABLES["privacy"](delta=2), "privacy.delta: expected float < 1.0, got 2"),
        (lambda: replace(Config(), seed=-1), "seed: expected int >= 0, got -1"),
        (lambda: Config(protect=3), "protect is a table, got 3; set one of its keys: protect.method, protect.ratio, "),
        (lambda: Config(privacy=TABLES["privacy"](clip=math.inf)), "privacy.clip = inf leaves nothing to calibrate"),
        (lambda: Config(protect={"rato": 0.1}), "unknown key 'protect.rato' (did you mean 'ratio'?)"),
    ],
)  # fmt: skip
def test_what_is_wrong_in_python_is_told_in_the_words_for_files(build, told):
    with pytest.raises(ConfigError, match=re.escape(told)):
        build()


def test_a_whole_number_or_numpys_is_taken_for_a_float():
    assert type(TABLES["protect"](ratio=1).ratio) is type(TABLES["protect"](ratio=np.float64(1)).ratio) is float


def test_clients_are_ten_or_as_many_as_are_told_or_named():
    assert make_config({}).names == tuple(f"client-{index}" for index in range(10))
    assert make_config({}, ["federation.clients=2"]).names == ("client-0", "client-1")
    named = make_config({}, ["federation.names=['hospital-a', 'hospital-b']"])
    assert (named.names, named.federation.clients) == (("hospital-a", "hospital-b"), 2)
    assert make_config({}, ["federation.names=['hospital-a', 'hospital-b']", "federation.clients=2"]) == named


def test_a_number_of_clients_that_is_not_that_of_the_names_is_refused():
    message = refusal("federation.names=['a', 'b']", "federation.clients=3")
    assert "federation.clients is 3, but federation.names lists 2 (a, b)" in message


@pytest.mark.parametrize("name", ["", ".", "..", "-", "-a", "_", "a b", "a/b", "a\n", "server", "Server", "A"])
def test_what_no_file_could_be_called_or_another_is_called_is_no_name(name):
    assert outcome(lambda: make_config({"federation": {"names": ["a", name]}})).startswith("federation.names: ")


@pytest.mark.parametrize("name", ["hospital-b", "b", "7", "st.mary_2", "Charité"])
def test_letters_digits_and_three_signs_make_a_name(name):
    assert make_config({"federation": {"names": ["a", name]}}).names == ("a", name)


def test_the_digest_without_names_is_what_it_was_before_clients_had_names():
    """Runs that lie in folders are found, and go on."""
    assert Config().digest() == "70039d5e7b399fd067089ae7767afa04d1e817caadcb8acc0869dabe79a4908a"
    three = make_config({}, ["federation.clients=3", "protect.ratio=1"])
    assert three.digest() == "40a2b188e72f3b104603f4f8b65bee6a7d50e509b94d9b90dd23ba6fabc01bc3"


def test_files_and_digests_contain_a_newer_key_only_where_it_was_changed():
    plain, scheduled = Config(), make_config({}, ["train.schedule=cosine"])
    assert list(plain.tables()["train"]) == ["epochs", "batch", "optimizer", "lr", "momentum", "server_lr"]
    assert scheduled.tables()["train"] == {**plain.tables()["train"], "schedule": "cosine"}
    assert make_config(scheduled.tables()) == scheduled
    assert scheduled.digest() != plain.digest()


def leaves(table, key=""):
    for name, value in table.items():
        path = f"{key}.{name}" if key else name
        yield from leaves(value, path) if isinstance(value, dict) else [(path, value)]


TEN = [f"hospital-{letter}" for letter in "abcdefghij"]
OTHER = {"federation.names": TEN, "data.folder": "elsewhere", "data.name": "cifar10", "model.name": "mlp",
         "protect.profile": "other", "protect.method": "fedavg", "protect.ratio": 0.2,
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
    for word in ("uniform", "dirichlet", "adam", "min", "tight", "secret", "cpu", "cosine", "matrix", "variance", "up"):
        try:
            make_config({}, [f"{path}={word}"])
        except ConfigError:
            continue
        return word
    return None  # a key with a single legal value


TIGHT = ["privacy.calibration=tight", "federation.fraction=0.1", "federation.rounds=10"]
CHANGES = [
    (path, changed)
    for path, value in leaves(msgspec.to_builtins(Config()))
    if (changed := another(path, value)) is not None
]


@pytest.mark.parametrize(("path", "changed"), CHANGES, ids=[path for path, _ in CHANGES])
def test_the_digest_ignores_what_may_differ_between_silos_and_nothing_else(path, changed):
    needs = {"protect.decay": ["protect.method=paraaegis-dynamic"], "privacy.participations": TIGHT}
    settings = [f"{path}={changed}", *needs.get(path, [])]
    base = make_config({}, settings[1:])
    ignored = path.startswith("engine.") or path in ("data.folder", "privacy.attempts")
    assert (make_config({}, settings).digest() == base.digest()) == ignored


def test_the_digest_does_not_depend_on_how_a_value_was_written():
    tables = tomllib.loads("[protect]\nratio = 0.10\n[federation]\nclients = 10")
    assert make_config(tables).digest() == Config().digest()


@pytest.mark.parametrize(("clients", "fraction", "sampled"), [(10, 1.0, 10), (10, 0.5, 5), (10, 0.01, 1), (3, 0.4, 1)])
def test_a_round_has_at_least_one_client(clients, fraction, sampled):
    config = make_config({}, [f"federation.clients={clients}", f"federation.fraction={fraction}"])
    assert config.sampled == sampled


DOCS = Path(__file__).parents[2] / "docs" / "configuration.md"


def test_every_key_is_documented_as_it_is():
    rows = [line for line in DOCS.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    assert rows == [f"| `{key.name}` | `{key.default}` | {key.allowed} | {key.meaning} |" for key in all_keys()]
    assert "| `privacy.clip` | `1.0` | number > 0 | θ, L2 norm that an update is clipped to; inf: not clipped |" in rows


def test_the_documented_files_are_a_configuration_and_a_preset(tmp_path):
    one, grid = re.findall(r"```toml\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "one.toml").write_text(one)
    assert load_config(tmp_path / "one.toml").protect.ratio == 0.01
    (tmp_path / "grid.toml").write_text(grid)
    cells = cells_of(read_preset(str(tmp_path / "grid.toml")))
    assert [(cell.label, cell.split, cell.seed) for cell in cells] == [
        ("static-10", "iid", 0), ("static-10", "iid", 1), ("static-10", "skewed", 0), ("static-10", "skewed", 1),
        ("feedback-1", "iid", 0)]  # fmt: skip


RACE = """
import sys, threading
sys.setswitchinterval(1e-6)
from paraaegis.config import make_config
barrier = threading.Barrier(16)
def read():
    barrier.wait()
    make_config({})
threads = [threading.Thread(target=read) for _ in range(16)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
"""


def test_threads_may_read_their_first_configuration_at_once():
    """Without care one such process in eight ends by a segmentation fault."""
    assert [subprocess.run([sys.executable, "-c", RACE], check=False).returncode for _ in range(6)] == [0] * 6
