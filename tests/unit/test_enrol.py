"""Secrets reach approved silos and nobody else, though a server that nobody trusts carries them."""

from dataclasses import replace

import pytest

from paraaegis.cli import main
from paraaegis.crypto.enrol import check_approved, fingerprint_of, key_id, open_keys, seal_keys
from paraaegis.crypto.keys import FederationKeys, encode_keys, load_identity, load_keys
from paraaegis.crypto.sealing import new_pair, seal
from paraaegis.errors import CryptoError, KeyFileError
from paraaegis.experiments.enrolment import KeyFolder, deal

LEAD, SILO, SERVER = new_pair(), new_pair(), new_pair()
ROSTER = {"client-0": LEAD[1], "client-1": SILO[1]}
SECRETS = FederationKeys(vote=bytes(range(32)), ckks=b"a ckks key", profile="precise", roster=ROSTER)


def sealed():
    return seal_keys(SECRETS, LEAD[0], "client-1")


def opened(parcel, private=SILO[0], name="client-1", lead_public=LEAD[1], lead=None):
    return open_keys(parcel, private, name, lead_public, lead or fingerprint_of(LEAD[1]))


def test_what_the_lead_sealed_opens_at_the_silo_it_was_sealed_to():
    assert opened(sealed()) == SECRETS


def test_a_key_that_was_not_approved_is_refused():
    check_approved("client-1", SILO[1], fingerprint_of(SILO[1]))
    for approved in (fingerprint_of(LEAD[1]), ""):
        with pytest.raises(CryptoError, match="nothing was sealed"):
            check_approved("client-1", SILO[1], approved)


def test_a_server_that_seals_secrets_of_its_own_is_refused():
    forged = seal_keys(SECRETS, SERVER[0], "client-1")
    with pytest.raises(CryptoError, match="were not opened"):  # it shows its own key
        opened(forged, lead_public=SERVER[1])
    with pytest.raises(CryptoError, match="do not open"):  # it shows the lead's
        opened(forged)


@pytest.mark.parametrize("wrong", [{"private": SERVER[0]}, {"name": "client-2"}, {"private": LEAD[0]}])
def test_a_parcel_opens_for_nobody_else(wrong):
    with pytest.raises(CryptoError):
        opened(sealed(), **wrong)


def test_a_parcel_that_was_changed_does_not_open():
    parcel = bytearray(sealed())
    parcel[-1] ^= 1
    with pytest.raises(CryptoError):
        opened(bytes(parcel))


def test_fingerprints_and_key_ids_differ_and_tell_no_secret():
    prints = {fingerprint_of(new_pair()[1]) for _ in range(50)}
    assert len(prints) == 50
    assert all(len(one) == 39 for one in prints)
    other = FederationKeys(vote=bytes(32), ckks=SECRETS.ckks, profile="precise")
    assert key_id(SECRETS) != key_id(other)
    assert key_id(SECRETS) != key_id(replace(SECRETS, roster={**ROSTER, "client-1": SERVER[1]}))
    assert SECRETS.vote.hex()[:8] not in key_id(SECRETS)


# Folders


def federation(tmp_path):
    """A lead and two silos that know each other's fingerprints."""
    lead, silos = (
        KeyFolder(tmp_path / "client-0"),
        {name: KeyFolder(tmp_path / name) for name in ("client-1", "client-2")},
    )
    told = {name: silo.create(lead.create()) for name, silo in silos.items()}
    lead.approve(told)
    return lead, silos


def handed_out(lead, silos):
    for name, parcel in lead.seal({name: silo.public for name, silo in silos.items()}, lead.path.name).items():
        silos[name].open(parcel, name, lead.public)


def test_silos_end_with_the_leads_secrets_in_files_of_their_own(tmp_path):
    lead, silos = federation(tmp_path)
    handed_out(lead, silos)
    for silo in silos.values():
        assert load_keys(silo.keys) == load_keys(lead.keys)
        assert {path.stat().st_mode & 0o777 for path in (silo.keys, silo.identity)} == {0o600}


def test_a_fingerprint_belongs_to_one_silo_and_a_silo_leads_or_follows(tmp_path):
    lead, silos = federation(tmp_path)
    with pytest.raises(KeyFileError, match="client-1 and client-3 cannot have the same fingerprint"):
        lead.approve({"client-3": lead.approved()["client-1"]})
    assert set(lead.approved()) == {"client-1", "client-2"}
    with pytest.raises(KeyFileError, match="it cannot lead as well"):
        silos["client-1"].approve({})
    assert not silos["client-1"].leads


def test_when_a_silo_leaves_the_others_get_new_secrets_and_it_gets_none(tmp_path):
    lead, silos = federation(tmp_path)
    handed_out(lead, silos)
    before = lead.key_id
    assert lead.rotate("client-2") == lead.key_id != before
    with pytest.raises(CryptoError, match="approved is none"):
        lead.seal({"client-2": silos["client-2"].public}, "client-0")
    stayed = {"client-1": silos["client-1"]}
    handed_out(lead, stayed)
    assert stayed["client-1"].key_id == lead.key_id != silos["client-2"].key_id
    with pytest.raises(KeyFileError, match="approved client-1, not 'client-9'"):
        lead.rotate("client-9")


def test_when_the_lead_leaves_another_takes_over_with_secrets_that_it_does_not_know(tmp_path):
    old, silos = federation(tmp_path)
    handed_out(old, silos)
    new, other = silos["client-1"], silos["client-2"]
    told = new.approve({"client-2": other.create()}, take_over=True)
    assert new.leads
    assert new.lead == ""
    with pytest.raises(CryptoError, match="they were not opened"):
        handed_out(new, {"client-2": other})  # it was not told yet
    other.create(told)
    handed_out(new, {"client-2": other})
    assert load_keys(other.keys) == load_keys(new.keys)
    assert load_keys(new.keys).vote != load_keys(old.keys).vote
    assert load_keys(new.keys).ckks != load_keys(old.keys).ckks
    with pytest.raises(CryptoError, match="they were not opened"):
        handed_out(old, {"client-2": other})
    with pytest.raises(KeyFileError, match="leave --take-over out"):
        new.approve({}, take_over=True)


def test_secrets_of_a_new_lead_are_taken_whatever_their_epoch_and_only_once(tmp_path):
    old, silos = federation(tmp_path)
    new, other = silos["client-1"], silos["client-2"]
    handed_out(old, {"client-2": other})  # the new lead never got any
    other.create(new.approve({"client-2": other.create()}, take_over=True))
    early = new.seal({"client-2": other.public}, "client-1")["client-2"]
    other.open(early, "client-2", new.public)
    assert other.key_id == new.key_id
    new.approve({"client-3": KeyFolder(tmp_path / "client-3").create()})
    new.rotate("client-3")
    handed_out(new, {"client-2": other})
    with pytest.raises(KeyFileError, match="handing out old ones again"):
        other.open(early, "client-2", new.public)
    assert other.key_id == new.key_id


def test_old_secrets_stay_refused_though_another_led_in_between(tmp_path):
    first, silos = federation(tmp_path)
    second, other = silos["client-1"], silos["client-2"]
    early = first.seal({"client-2": other.public}, "client-0")["client-2"]
    handed_out(first, {"client-2": other})
    first.rotate()
    handed_out(first, {"client-2": other})
    other.create(second.approve({"client-2": other.create()}, take_over=True))
    handed_out(second, {"client-2": other})
    other.create(first.create())
    with pytest.raises(KeyFileError, match="secrets of epoch 2 came, this silo has had epoch 3 of its lead"):
        other.open(early, "client-2", first.public)
    assert other.key_id == second.key_id
    handed_out(first, {"client-2": other})
    assert other.key_id == first.key_id


def test_a_folder_of_before_leads_were_written_down_refuses_old_secrets_and_takes_a_new_leads(tmp_path):
    first, silos = federation(tmp_path)
    second, other = silos["client-1"], silos["client-2"]
    early = first.seal({"client-2": other.public}, "client-0")["client-2"]
    for _ in range(2):
        first.rotate()
    handed_out(first, {"client-2": other})
    (other.path / "lead.toml").write_text(f'lead = "{first.create()}"\n')
    with pytest.raises(KeyFileError, match="epoch 2 came, this silo has had epoch 4"):
        other.open(early, "client-2", first.public)
    other.create(second.approve({"client-2": other.create()}, take_over=True))
    handed_out(second, {"client-2": other})
    assert other.key_id == second.key_id


def test_new_secrets_may_have_another_profile(tmp_path):
    lead, silos = federation(tmp_path)
    handed_out(lead, silos)
    with pytest.raises(
        KeyFileError, match=r"holds keys of profile 'precise', asked for 'compact': `paraaegis keys rotate"
    ):
        lead.approve({}, "compact")
    lead.rotate(chosen="compact")
    handed_out(lead, silos)
    assert {load_keys(silo.keys).profile for silo in silos.values()} == {"compact"}
    lead.approve({"client-3": KeyFolder(tmp_path / "client-3").create()})  # the profile is that which lies there
    silos["client-1"].approve({}, take_over=True)
    assert load_keys(silos["client-1"].keys).profile == "compact"
    with pytest.raises(KeyFileError, match="does not lead"):
        silos["client-2"].rotate()


def test_a_silo_that_took_over_in_part_still_follows(tmp_path, monkeypatch):
    old, silos = federation(tmp_path)
    handed_out(old, silos)
    new = silos["client-1"]
    monkeypatch.setattr(KeyFolder, "_write_approved", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        new.approve({}, take_over=True)
    assert not new.leads
    monkeypatch.undo()
    new.approve({}, take_over=True)
    assert load_keys(new.keys).epoch == 4  # one for the roster, two for the attempts to take over
    assert new.leads


def test_dealt_keys_hold_what_each_silo_needs_and_the_server_nothing_secret(tmp_path):
    *silos, server = deal(tmp_path, 3)
    secrets = [load_keys(silo / "keys") for silo in silos]
    assert secrets[0] == secrets[1] == secrets[2]
    assert len({(silo / "identity").read_bytes() for silo in silos}) == 3
    public = (server / "public.toml").read_bytes()
    assert secrets[0].vote not in public
    assert secrets[0].vote.hex().encode() not in public
    assert sorted(path.name for path in server.iterdir()) == ["public.toml"]
    with pytest.raises(KeyFileError, match="never overwritten"):
        deal(tmp_path, 3)


def call(monkeypatch, capsys, *arguments):
    monkeypatch.setattr("sys.argv", ["paraaegis", "keys", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    found = capsys.readouterr()
    return ended.value.code, found.out + found.err


def test_no_command_prints_a_secret(monkeypatch, capsys, tmp_path):
    said = [
        call(monkeypatch, capsys, "new", tmp_path / "dealt", "--clients", 2),
        call(monkeypatch, capsys, "lead", tmp_path / "lead", "--approve", "client-1=" + "-".join(["0000"] * 8)),
        call(monkeypatch, capsys, "identity", tmp_path / "silo", "--lead", "-".join(["0000"] * 8), "--json"),
        call(monkeypatch, capsys, "rotate", tmp_path / "lead", "--without", "client-1"),
        call(monkeypatch, capsys, "rotate", tmp_path / "lead", "--profile", "compact", "--json"),
        call(monkeypatch, capsys, "lead", tmp_path / "silo", "--take-over"),
        call(monkeypatch, capsys, "show", tmp_path / "lead"),
        call(monkeypatch, capsys, "show", tmp_path / "dealt" / "client-0", "--json"),
    ]
    assert {code for code, _ in said} == {0}
    text = "".join(output for _, output in said)
    secrets = [load_keys(tmp_path / where / "keys") for where in ("dealt/client-0", "lead", "silo")]
    for keys in secrets:
        assert keys.vote.hex() not in text
        assert repr(keys.vote) not in text
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
    code, text = call(monkeypatch, capsys, "lead", tmp_path / "lead", "--approve", f"foo={told['client-1']}")
    assert (code, text) == (2, "error: silos are called client-0, client-1 and so on, got 'foo'\n")


def test_a_folder_that_others_can_read_is_refused_with_the_command_that_helps(monkeypatch, capsys, tmp_path):
    deal(tmp_path / "dealt", 1)
    (tmp_path / "dealt" / "client-0" / "identity").chmod(0o644)
    code, text = call(monkeypatch, capsys, "show", tmp_path / "dealt" / "client-0")
    assert code == 2
    assert "chmod 600" in text


def test_secrets_of_an_earlier_epoch_are_not_taken_back(tmp_path):
    """A server that kept an old parcel could otherwise undo a rotation."""
    lead, silos = federation(tmp_path)
    publics = {name: silo.public for name, silo in silos.items()}
    old = lead.seal(publics, "client-0")["client-1"]
    handed_out(lead, silos)
    lead.rotate("client-2")
    handed_out(lead, {"client-1": silos["client-1"]})
    with pytest.raises(KeyFileError, match="epoch 2 came"):
        silos["client-1"].open(old, "client-1", lead.public)
    assert silos["client-1"].key_id == lead.key_id


def test_a_rotation_that_was_interrupted_can_be_done_again(tmp_path, monkeypatch):
    lead, _ = federation(tmp_path)
    before = lead.key_id
    with monkeypatch.context() as patch:
        patch.setattr("paraaegis.experiments.enrolment.save_keys", lambda *_: (_ for _ in ()).throw(OSError("full")))
        with pytest.raises(OSError, match="full"):
            lead.rotate("client-2")
    assert lead.key_id == before
    assert "client-2" not in lead.approved()
    assert lead.rotate("client-2") != before


@pytest.mark.parametrize("wrong", ["garbage", "4f2a", "4f2a-4f2a-4f2a-4f2a-4f2a-4f2a-4f2a-4f2g"])
def test_what_is_no_fingerprint_is_refused(tmp_path, wrong):
    with pytest.raises(KeyFileError, match="eight groups"):
        KeyFolder(tmp_path / "lead").approve({"client-1": wrong})
    with pytest.raises(KeyFileError, match="eight groups"):
        KeyFolder(tmp_path / "silo").create(wrong)


def test_a_lead_does_not_follow(tmp_path):
    lead, other = KeyFolder(tmp_path / "lead"), KeyFolder(tmp_path / "other").create()
    lead.approve({})
    with pytest.raises(KeyFileError, match="it cannot follow"):
        lead.create(other)
    assert lead.lead == ""


def test_keys_are_not_dealt_without_end(tmp_path):
    with pytest.raises(KeyFileError, match="at most 1000 silos"):
        deal(tmp_path, 1001)
    assert list(tmp_path.iterdir()) == []


def test_a_silo_that_joins_or_has_a_new_identity_is_a_new_roster_for_all(tmp_path):
    lead, silos = federation(tmp_path)
    handed_out(lead, silos)
    before = load_keys(lead.keys)
    handed_out(lead, silos)
    assert load_keys(lead.keys) == before  # nothing new, nothing changed
    third = KeyFolder(tmp_path / "client-3")
    lead.approve({"client-3": third.create(lead.create())})
    handed_out(lead, {**silos, "client-3": third})
    after = load_keys(lead.keys)
    assert (after.vote, after.ckks, after.epoch) == (before.vote, before.ckks, before.epoch + 1)
    assert set(after.roster) == {"client-0", "client-1", "client-2", "client-3"}
    assert {silo.key_id for silo in (*silos.values(), third)} == {lead.key_id}


def test_a_roster_with_another_key_for_this_silo_is_refused(tmp_path):
    lead, silos = federation(tmp_path)
    parcel = lead.seal({name: silo.public for name, silo in silos.items()}, "client-0")["client-1"]
    keys = load_keys(lead.keys)
    lying = replace(keys, roster={**keys.roster, "client-1": SILO[1]})
    private = load_identity(lead.identity)[0]
    forged = seal(private, silos["client-1"].public, encode_keys(lying), b"paraaegis-enrolment-1:client-1")
    with pytest.raises(KeyFileError, match="another key for client-1"):
        silos["client-1"].open(forged, "client-1", lead.public)
    silos["client-1"].open(parcel, "client-1", lead.public)


def test_dealt_keys_come_with_everyones_identity(tmp_path):
    folders = deal(tmp_path / "dealt", 3)[:-1]
    for folder in folders:
        roster = load_keys(folder / "keys").roster
        assert roster == {path.name: KeyFolder(path).public for path in folders}
