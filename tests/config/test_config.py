"""A configuration is checked whole before any work, and says what is wrong with it."""

import math
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import tomli_w

from paraaegis.comparisons.preset import cells_of, read_preset
from paraaegis.config import PROFILES, Config, Protect, load_config, make_config
from paraaegis.crypto import ckks, rlwe
from paraaegis.errors import ConfigError
from refusals import refusal

PRESET = 'title = "t"\nsplits = { iid = {} }\n[[rows]]\nlabel = "a"\n'
DIGITS = Path(__file__).parents[2] / "configs" / "digits.toml"


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
        ("protect.ratio=1.5", ["protect.ratio", "≤ 1", "1.5"]),
        ("protect.ratio=-0.1", ["protect.ratio", "≥ 0", "-0.1"]),
        ("protect.decay=0", ["protect.decay", "> 0", "got 0"]),
        ("privacy.clip=0", ["privacy.clip", "> 0", "got 0"]),
        ("privacy.clip=-1.0", ["privacy.clip", "> 0", "-1.0"]),
        ("privacy.delta=1.0", ["privacy.delta", "< 1", "1.0"]),
        ("privacy.epsilon=0", ["privacy.epsilon", "> 0", "got 0"]),
        ("federation.clients=-1", ["federation.clients", "≥ 0", "got -1"]),
        ("federation.clients=2.5", ["federation.clients", "a whole number", "2.5"]),
        ("federation.rounds=true", ["federation.rounds", "a whole number", "True"]),
        ("federation.fraction=0", ["federation.fraction", "> 0", "got 0"]),
        (
            "federation=3",
            ["federation is a table of settings, got 3; set one of its keys instead: federation.clients, "],
        ),
        ("federation.names=a,b", ['federation.names must be a list such as ["a", "b"], got \'a,b\'']),
        ("federation.names=['a', 3]", ["federation.names[1] must be text, got 3"]),
        ("seed=-1", ["seed", "≥ 0", "-1"]),
        ("seed=one", ["seed must be a whole number, got 'one'"]),
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


@pytest.mark.parametrize(("settings", "told"), [((), "typo.toml: unknown key"), (["seed=1"], "typo.toml with --set: ")])
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


@pytest.mark.parametrize(("clients", "fraction", "sampled"), [(10, 1.0, 10), (10, 0.5, 5), (10, 0.01, 1), (3, 0.4, 1)])
def test_a_round_has_at_least_one_client(clients, fraction, sampled):
    config = make_config({}, [f"federation.clients={clients}", f"federation.fraction={fraction}"])
    assert config.sampled == sampled


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


@pytest.mark.parametrize(("cipher", "profile", "filled"), [
    ("ckks", "", "precise"), ("ckks", "compact", "compact"), ("rlwe", "", "wide"), ("rlwe", "double", "double"),
])  # fmt: skip
def test_a_profile_is_one_of_its_ciphers_the_first_by_default(cipher, profile, filled):
    assert Protect(cipher=cipher, profile=profile).profile == filled


def test_the_profiles_of_the_configuration_are_those_that_there_are():
    assert {"ckks": tuple(ckks.PROFILES), "rlwe": tuple(rlwe.PROFILES)} == PROFILES


@pytest.mark.parametrize(("settings", "said"), [
    (["protect.profile=compat"], "must be one of precise, compact for protect.cipher = 'ckks', got 'compat' (did you"),
    (["protect.cipher=rlwe", "protect.profile=precise"], "it belongs to cipher 'ckks'; leave it out for 'wide'"),
    (["protect.profile=wide"], "it belongs to cipher 'rlwe'; leave it out for 'precise'"),
])  # fmt: skip
def test_a_profile_of_another_cipher_is_refused(settings, said):
    with pytest.raises(ConfigError, match=re.escape(said)):
        make_config({}, settings)
