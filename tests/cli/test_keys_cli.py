"""`paraaegis keys` tells people what to do, and never a secret."""

import json

import pytest

from key_folders import call
from paraaegis.crypto.keys import load_keys
from paraaegis.deploy.key_folder import KeyFolder, deal_keys


def test_no_command_prints_a_secret(monkeypatch, capsys, tmp_path):
    said = [
        call(monkeypatch, capsys, "new", tmp_path / "dealt", "--clients", 2),
        call(monkeypatch, capsys, "lead", tmp_path / "lead", "--approve", "client-1=" + "-".join(["0000"] * 8)),
        call(monkeypatch, capsys, "identity", tmp_path / "silo", "--lead", "-".join(["0000"] * 8), "--json"),
        call(monkeypatch, capsys, "rotate", tmp_path / "lead", "--without", "client-1"),
        call(monkeypatch, capsys, "rotate", tmp_path / "lead", "--json"),
        call(monkeypatch, capsys, "lead", tmp_path / "silo", "--take-over"),
        call(monkeypatch, capsys, "show", tmp_path / "lead"),
        call(monkeypatch, capsys, "show", tmp_path / "dealt" / "client-0", "--json"),
    ]
    assert {code for code, _ in said} == {0}
    text = "".join(output for _, output in said)
    secrets = [load_keys(tmp_path / round_id / "keys") for round_id in ("dealt/client-0", "lead", "silo")]
    for keys in secrets:
        assert keys.root.secret.hex() not in text
        assert repr(keys.root.secret) not in text
    assert "fingerprint" in text


def test_a_lead_is_shown_as_one_with_a_line_a_silo_that_it_approved(monkeypatch, capsys, tmp_path):
    told = {name: KeyFolder(tmp_path / name).create() for name in ("client-1", "client-2")}
    pairs = [word for name, fingerprint in told.items() for word in ("--approve", f"{name}={fingerprint}")]
    assert call(monkeypatch, capsys, "lead", tmp_path / "lead", *pairs)[0] == 0
    code, text = call(monkeypatch, capsys, "show", tmp_path / "lead")
    assert (code, text.splitlines()[-3:]) == (0, [
        "leads        yes",
        f"approved     client-1  {told['client-1']}",
        f"             client-2  {told['client-2']}",
    ])  # fmt: skip


def test_what_no_client_can_be_called_is_not_approved(monkeypatch, capsys, tmp_path):
    told = KeyFolder(tmp_path / "silo").create()
    code, text = call(monkeypatch, capsys, "lead", tmp_path / "lead", "--approve", f"hospital b={told}")
    assert (code, text[:31]) == (2, "error: a client's name consists")
    assert not (tmp_path / "lead").exists()


def test_a_lead_is_told_what_to_do_with_its_fingerprint(monkeypatch, capsys, tmp_path):
    told = KeyFolder(tmp_path / "hospital-b").create()
    code, text = call(monkeypatch, capsys, "lead", tmp_path / "lead", "--approve", f"hospital-b={told}")
    own = KeyFolder(tmp_path / "lead").create()
    first, *_, third, _, fifth, last = text.splitlines()
    assert (code, first) == (0, f"the lead's fingerprint: {own}")
    assert third == f"  paraaegis keys identity THEIR-FOLDER --lead {own}"
    assert fifth == f"  paraaegis keys lead {tmp_path / 'lead'} --approve NAME=FINGERPRINT"
    assert last == "Approved so far: hospital-b. They receive the keys when a run starts."
    text = call(monkeypatch, capsys, "lead", tmp_path / "lead", "--json")[1]
    assert json.loads(text) == {"fingerprint": own}


def test_a_lead_that_rotates_is_told_what_comes_next(monkeypatch, capsys, tmp_path):
    silo, lead = KeyFolder(tmp_path / "hospital-b").create(), KeyFolder(tmp_path / "lead")
    lead.approve({"hospital-b": silo})
    assert "Remove" not in call(monkeypatch, capsys, "rotate", tmp_path / "lead")[1]
    code, text = call(monkeypatch, capsys, "rotate", tmp_path / "lead", "--without", "hospital-b")
    assert (code, text.splitlines()) == (0, [
        f"new secrets: {lead.key_id}",
        "Remove hospital-b from federation.names in every silo's configuration and in the server's.",
        "Start a new run: the other silos receive the new secrets when they connect to the server.",
    ])  # fmt: skip


def test_keys_are_dealt_to_silos_by_name_or_by_number(monkeypatch, capsys, tmp_path):
    assert call(monkeypatch, capsys, "new", tmp_path / "named", "--names", "hospital-a, hospital-b")[0] == 0
    assert call(monkeypatch, capsys, "new", tmp_path / "counted", "--clients", 2)[0] == 0
    assert {path.name for path in (tmp_path / "named").iterdir()} == {"hospital-a", "hospital-b", "server"}
    assert {path.name for path in (tmp_path / "counted").iterdir()} == {"client-0", "client-1", "server"}
    assert set(load_keys(tmp_path / "named" / "hospital-a" / "keys").roster) == {"hospital-a", "hospital-b"}


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ((), "either --names hospital-a,hospital-b or --clients 2"),
        (("--names", "a,b", "--clients", 2), "either --names hospital-a,hospital-b or --clients 2"),
        (("--names", "a,../b"), "got '../b'"),
        (("--names", ""), "got ''"),
        (("--names", "a,server"), "a client cannot be called 'server'"),
        (("--names", "a,b,a"), "got a and a"),
    ],
)
def test_keys_are_not_dealt_to_silos_without_names_of_their_own(monkeypatch, capsys, tmp_path, options, told):
    code, text = call(monkeypatch, capsys, "new", tmp_path / "dealt", *options)
    assert (code, told in text) == (2, True)
    assert not (tmp_path / "dealt").exists()


def test_a_folder_that_others_can_read_is_refused_with_the_command_that_helps(monkeypatch, capsys, tmp_path):
    deal_keys(tmp_path / "dealt", ["client-0"])
    (tmp_path / "dealt" / "client-0" / "identity").chmod(0o644)
    code, text = call(monkeypatch, capsys, "show", tmp_path / "dealt" / "client-0")
    assert code == 2
    assert "chmod 600" in text
