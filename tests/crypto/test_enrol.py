"""Secrets reach approved silos and nobody else, though a server that nobody trusts carries them."""

import json
import threading
from dataclasses import replace

import msgspec
import pytest

from paraaegis.cli import main
from paraaegis.config import numbered
from paraaegis.crypto.enrol import KeyRequest, check_approved, fingerprint_of, key_id, open_keys, seal_keys
from paraaegis.crypto.kdf import derive, tag
from paraaegis.crypto.keys import (
    FederationKeys,
    encode_keys,
    load_identity,
    load_keys,
    save_keys,
    spend_root,
    write_secret,
)
from paraaegis.crypto.ratchet import Root
from paraaegis.crypto.sealed_box import agree, new_pair, seal, unseal
from paraaegis.deploy import key_folder as enrolment
from paraaegis.deploy.key_folder import KeyFolder, deal_keys
from paraaegis.errors import CryptoError, KeyFileError

SILOS = ("client-0", "client-1", "client-2")
LEAD, SILO, SERVER, ONCE = new_pair(), new_pair(), new_pair(), new_pair()
ROSTER = {"client-0": LEAD[1], "client-1": SILO[1]}
SECRETS = FederationKeys(Root(bytes(range(32)), bytes(16), 4), epoch=2, roster=ROSTER)
CONTEXT = b"paraaegis-enrolment-2:client-1"


def asking(once=ONCE[1], held=None, lead=LEAD[1], told=None):
    return KeyRequest.make(SILO, once, held, lead, fingerprint_of(LEAD[1]) if told is None else told)


def proof_under(secret, once=ONCE[1]):
    return tag(derive(secret, "enrolment"), once, b"", bytes(8))


def sealed():
    return seal_keys(SECRETS, LEAD[0], "client-1", asking())


def opened(parcel, private=SILO[0], once=ONCE[0], name="client-1", lead_public=LEAD[1], lead=None):
    return open_keys(parcel, private, once, name, lead_public, lead or fingerprint_of(LEAD[1]))


def test_what_the_lead_sealed_opens_at_the_silo_it_was_sealed_to():
    assert opened(sealed()) == SECRETS


def test_a_key_that_was_not_approved_is_refused():
    check_approved("client-1", SILO[1], fingerprint_of(SILO[1]))
    for approved in (fingerprint_of(LEAD[1]), ""):
        with pytest.raises(CryptoError, match="nothing was sealed"):
            check_approved("client-1", SILO[1], approved)


def test_a_server_that_seals_secrets_of_its_own_is_refused():
    forged = seal(SERVER[0], SILO[1], encode_keys(SECRETS), CONTEXT, once=ONCE[1])
    with pytest.raises(CryptoError, match="were not accepted"):  # it shows its own key
        opened(forged, lead_public=SERVER[1])
    with pytest.raises(CryptoError, match="do not open"):  # it shows the lead's
        opened(forged)


@pytest.mark.parametrize(
    "wrong", [{"private": SERVER[0]}, {"name": "client-2"}, {"private": LEAD[0]}, {"once": SERVER[0]}]
)
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
    assert key_id(SECRETS) != key_id(replace(SECRETS, root=Root.new()))
    assert key_id(SECRETS) != key_id(replace(SECRETS, roster={**ROSTER, "client-1": SERVER[1]}))
    assert SECRETS.root.secret.hex()[:8] not in key_id(SECRETS)


def test_a_key_id_names_a_line_and_a_roster_however_many_runs_there_were():
    """Silos that missed some runs are not enrolled again, and a server learns nothing from a name that stays."""
    assert key_id(SECRETS) == key_id(replace(SECRETS, root=SECRETS.root.forward(9)))
    assert key_id(SECRETS) == key_id(replace(SECRETS, root=replace(SECRETS.root, secret=bytes(32))))
    assert key_id(SECRETS) == key_id(replace(SECRETS, roster=dict(reversed(ROSTER.items()))))


# The one-time key


@pytest.mark.parametrize(
    "once", [b"", new_pair()[0], SILO[0], LEAD[0], SERVER[0]], ids=["none", "fresh", "silo", "lead", "server"]
)
def test_with_both_long_term_keys_and_no_one_time_key_a_recorded_packet_stays_closed(once):
    parcel = sealed()
    for receiver, sender in ((SILO[0], LEAD[1]), (LEAD[0], SILO[1])):
        with pytest.raises(CryptoError, match="do not open"):
            unseal(receiver, sender, parcel, CONTEXT, once=once)
    assert unseal(SILO[0], LEAD[1], parcel, CONTEXT, once=ONCE[0]) == encode_keys(SECRETS)


FALSE_PROOFS = {
    "none": b"",
    "of another one-time key": asking(once=SERVER[1]).proof,
    "of an earlier root": asking(held=SECRETS.root).proof,
    "by the server": proof_under(agree(SERVER[0], LEAD[1])),
    "by the server with the silo": proof_under(agree(SERVER[0], SILO[1])),
    "cut": asking().proof[:-1],
    "by no key": proof_under(bytes(32)),
}


@pytest.mark.parametrize("false", FALSE_PROOFS.values(), ids=FALSE_PROOFS)
def test_a_one_time_key_that_the_silo_did_not_prove_is_refused(false):
    with pytest.raises(CryptoError, match="received for client-1 was not made by that client: nothing was sealed"):
        replace(asking(), proof=false).check(LEAD[0], "client-1")
    asking().check(LEAD[0], "client-1")
    assert asking().proof == proof_under(agree(SILO[0], LEAD[1]))


@pytest.mark.parametrize(("index", "sealed_index"), [(0, 4), (4, 4), (9, 9)])
def test_no_root_is_sealed_that_the_silo_has_erased(index, sealed_index):
    """A lead that was left out of runs is behind the silos that were in them."""
    held = Root(bytes(32), SECRETS.root.line, index)
    taken = opened(seal_keys(SECRETS, LEAD[0], "client-1", asking(held=held)))
    assert taken.root == SECRETS.root.forward(sealed_index)
    other = opened(seal_keys(SECRETS, LEAD[0], "client-1", asking(held=replace(held, line=b"another"))))
    assert other == SECRETS


def test_a_silo_proves_nothing_to_a_lead_that_it_was_not_told_of():
    with pytest.raises(CryptoError, match="this client was given none"):
        asking(lead=SERVER[1], told="")
    with pytest.raises(CryptoError, match="were not accepted"):
        asking(lead=SERVER[1])


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


def asked(silo, lead):
    """What a server passes on from a silo to the lead."""
    return silo.ask(lead.public)


def parcels_for(lead, silos):
    return lead.seal({name: asked(silo, lead) for name, silo in silos.items()}, lead.path.name)


def handed_out(lead, silos):
    for name, parcel in parcels_for(lead, silos).items():
        silos[name].open(parcel, name, lead.public)


def outdated(lead, before, silo):
    """A parcel with the keys that the lead had before, as if people there had brought back a copy."""
    now = lead.keys.read_bytes()
    write_secret(lead.keys, before)
    parcel = parcels_for(lead, {silo.path.name: silo})[silo.path.name]
    write_secret(lead.keys, now)
    return parcel


def test_silos_end_with_the_leads_secrets_in_files_of_their_own(tmp_path):
    lead, silos = federation(tmp_path)
    handed_out(lead, silos)
    for silo in silos.values():
        assert load_keys(silo.keys) == load_keys(lead.keys)
        assert {path.stat().st_mode & 0o777 for path in (silo.keys, silo.identity)} == {0o600}
        assert not silo.once.exists()


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
    with pytest.raises(CryptoError, match="approved one is none"):
        parcels_for(lead, {"client-2": silos["client-2"]})
    stayed = {"client-1": silos["client-1"]}
    handed_out(lead, stayed)
    assert stayed["client-1"].key_id == lead.key_id != silos["client-2"].key_id
    with pytest.raises(KeyFileError, match="has approved client-1, not 'client-9'"):
        lead.rotate("client-9")


def test_when_the_lead_leaves_another_takes_over_with_secrets_that_it_does_not_know(tmp_path):
    old, silos = federation(tmp_path)
    handed_out(old, silos)
    new, other = silos["client-1"], silos["client-2"]
    told = new.approve({"client-2": other.create()}, take_over=True)
    assert new.leads
    assert new.lead == ""
    with pytest.raises(CryptoError, match="the secrets were not accepted"):
        handed_out(new, {"client-2": other})  # it was not told yet
    other.create(told)
    handed_out(new, {"client-2": other})
    assert load_keys(other.keys) == load_keys(new.keys)
    assert load_keys(new.keys).root.secret != load_keys(old.keys).root.secret
    assert load_keys(new.keys).root.line != load_keys(old.keys).root.line
    with pytest.raises(CryptoError, match="the secrets were not accepted"):
        handed_out(old, {"client-2": other})
    with pytest.raises(KeyFileError, match="leave --take-over out"):
        new.approve({}, take_over=True)


def test_secrets_of_a_new_lead_are_taken_whatever_their_epoch_and_only_once(tmp_path):
    old, silos = federation(tmp_path)
    new, other = silos["client-1"], silos["client-2"]
    handed_out(old, {"client-2": other})  # the new lead never got any
    other.create(new.approve({"client-2": other.create()}, take_over=True))
    handed_out(new, {"client-2": other})
    assert other.key_id == new.key_id
    before = new.keys.read_bytes()
    new.approve({"client-3": KeyFolder(tmp_path / "client-3").create()})
    new.rotate("client-3")
    handed_out(new, {"client-2": other})
    early = outdated(new, before, other)
    with pytest.raises(KeyFileError, match="handing out old ones again"):
        other.open(early, "client-2", new.public)
    assert other.key_id == new.key_id


def test_old_secrets_stay_refused_though_another_led_in_between(tmp_path):
    first, silos = federation(tmp_path)
    second, other = silos["client-1"], silos["client-2"]
    handed_out(first, {"client-2": other})
    before = first.keys.read_bytes()
    first.rotate()
    handed_out(first, {"client-2": other})
    other.create(second.approve({"client-2": other.create()}, take_over=True))
    handed_out(second, {"client-2": other})
    other.create(first.create())
    early = outdated(first, before, other)
    with pytest.raises(KeyFileError, match="secrets of epoch 2, but this silo has already had epoch 3 from its lead"):
        other.open(early, "client-2", first.public)
    assert other.key_id == second.key_id
    handed_out(first, {"client-2": other})
    assert other.key_id == first.key_id


def test_a_folder_of_before_leads_were_written_down_refuses_old_secrets_and_takes_a_new_leads(tmp_path):
    first, silos = federation(tmp_path)
    second, other = silos["client-1"], silos["client-2"]
    handed_out(first, {"client-2": other})
    before = first.keys.read_bytes()
    for _ in range(2):
        first.rotate()
    handed_out(first, {"client-2": other})
    (other.path / "lead.toml").write_text(f'lead = "{first.create()}"\n')
    early = outdated(first, before, other)
    with pytest.raises(KeyFileError, match="epoch 2, but this silo has already had epoch 4"):
        other.open(early, "client-2", first.public)
    other.create(second.approve({"client-2": other.create()}, take_over=True))
    handed_out(second, {"client-2": other})
    assert other.key_id == second.key_id


def test_only_a_lead_makes_new_secrets(tmp_path):
    lead, silos = federation(tmp_path)
    handed_out(lead, silos)
    before = load_keys(lead.keys)
    lead.approve({"client-3": KeyFolder(tmp_path / "client-3").create()})  # with secrets that lie there already
    assert load_keys(lead.keys) == before
    lead.rotate()
    after = load_keys(lead.keys)
    assert (after.epoch, after.roster, after.root.index) == (before.epoch + 1, before.roster, 0)
    assert len({before.root.secret, after.root.secret}) == len({before.root.line, after.root.line}) == 2
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
    *silos, server = deal_keys(tmp_path, SILOS)
    secrets = [load_keys(silo / "keys") for silo in silos]
    assert secrets[0] == secrets[1] == secrets[2]
    assert len({(silo / "identity").read_bytes() for silo in silos}) == 3
    public = (server / "public.toml").read_bytes()
    assert secrets[0].root.secret not in public
    assert secrets[0].root.secret.hex().encode() not in public
    assert sorted(path.name for path in server.iterdir()) == ["public.toml"]
    with pytest.raises(KeyFileError, match="never overwritten"):
        deal_keys(tmp_path, SILOS)


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


def test_when_a_silo_leaves_the_others_keep_their_names(tmp_path):
    silos = {name: KeyFolder(tmp_path / name) for name in ("hospital-b", "hospital-c")}
    lead = KeyFolder(tmp_path / "hospital-a")
    lead.approve({name: silo.create(lead.create()) for name, silo in silos.items()})
    handed_out(lead, silos)
    lead.rotate("hospital-b")
    handed_out(lead, {"hospital-c": silos["hospital-c"]})
    assert set(load_keys(silos["hospital-c"].keys).roster) == {"hospital-a", "hospital-c"}


def test_a_folder_that_others_can_read_is_refused_with_the_command_that_helps(monkeypatch, capsys, tmp_path):
    deal_keys(tmp_path / "dealt", ["client-0"])
    (tmp_path / "dealt" / "client-0" / "identity").chmod(0o644)
    code, text = call(monkeypatch, capsys, "show", tmp_path / "dealt" / "client-0")
    assert code == 2
    assert "chmod 600" in text


@pytest.mark.parametrize(
    ("rotations", "came"), [(1, "3, but this silo has already had epoch 3"), (2, "3, but .* epoch 4")]
)
def test_secrets_of_an_earlier_epoch_or_others_of_the_same_are_not_taken(tmp_path, rotations, came):
    """Else a copy of old keys at the lead could undo a rotation. What a server kept opens no more anyhow."""
    lead, silos = federation(tmp_path)
    handed_out(lead, silos)
    before = lead.keys.read_bytes()  # of epoch 2; without client-2 in the roster they become those of epoch 3
    for _ in range(rotations):
        lead.rotate("client-2")
    handed_out(lead, {"client-1": silos["client-1"]})
    old = outdated(lead, before, silos["client-1"])
    with pytest.raises(KeyFileError, match=f"secrets of epoch {came}"):
        silos["client-1"].open(old, "client-1", lead.public)
    assert silos["client-1"].key_id == lead.key_id


def test_a_rotation_that_was_interrupted_can_be_done_again(tmp_path, monkeypatch):
    lead, _ = federation(tmp_path)
    before = lead.key_id
    with monkeypatch.context() as patch:
        patch.setattr("paraaegis.deploy.key_folder.save_keys", lambda *_: (_ for _ in ()).throw(OSError("full")))
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


def test_files_of_a_folder_may_begin_with_a_byte_order_mark(tmp_path):
    lead, silos = federation(tmp_path)
    for path in (lead.path / "approved.toml", silos["client-1"].path / "lead.toml"):
        path.write_text(path.read_text(), encoding="utf-8-sig")
    assert set(lead.approved()) == {"client-1", "client-2"}
    assert silos["client-1"].lead == lead.create()


def test_a_lead_does_not_follow(tmp_path):
    lead, other = KeyFolder(tmp_path / "lead"), KeyFolder(tmp_path / "other").create()
    lead.approve({})
    with pytest.raises(KeyFileError, match="it cannot follow"):
        lead.create(other)
    assert lead.lead == ""


def test_keys_are_not_dealt_without_end(tmp_path):
    with pytest.raises(KeyFileError, match="at most 1000 silos"):
        deal_keys(tmp_path, numbered(1001))
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
    assert (after.root, after.epoch) == (before.root, before.epoch + 1)
    assert set(after.roster) == {"client-0", "client-1", "client-2", "client-3"}
    assert {silo.key_id for silo in (*silos.values(), third)} == {lead.key_id}


def test_a_roster_with_another_key_for_this_silo_is_refused(tmp_path):
    lead, silos = federation(tmp_path)
    request = asked(silos["client-1"], lead)
    parcel = lead.seal({"client-1": request}, "client-0")["client-1"]
    keys = load_keys(lead.keys)
    lying = replace(keys, roster={**keys.roster, "client-1": SILO[1]})
    private = load_identity(lead.identity)[0]
    forged = seal(private, silos["client-1"].public, encode_keys(lying), CONTEXT, once=request.once)
    with pytest.raises(KeyFileError, match="another key for client-1"):
        silos["client-1"].open(forged, "client-1", lead.public)
    silos["client-1"].open(parcel, "client-1", lead.public)


def test_dealt_keys_come_with_everyones_identity(tmp_path):
    folders = deal_keys(tmp_path / "dealt", SILOS)[:-1]
    for folder in folders:
        roster = load_keys(folder / "keys").roster
        assert roster == {path.name: KeyFolder(path).public for path in folders}


# One-time keys in folders


def test_a_recorded_packet_opens_once(tmp_path):
    lead, silos = federation(tmp_path)
    silo = silos["client-1"]
    parcel = parcels_for(lead, {"client-1": silo})["client-1"]
    once = silo.once.read_bytes()
    silo.open(parcel, "client-1", lead.public)
    before = silo.keys.read_bytes()
    with pytest.raises(KeyFileError, match="has not asked for secrets, or already has them; nothing was changed"):
        silo.open(parcel, "client-1", lead.public)
    silo.ask(lead.public)
    with pytest.raises(CryptoError, match="do not open"):
        silo.open(parcel, "client-1", lead.public)
    assert silo.keys.read_bytes() == before
    assert all(once not in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


def test_who_steals_both_folders_later_does_not_open_a_recorded_packet(tmp_path):
    lead, silos = federation(tmp_path)
    silo = silos["client-1"]
    parcel = parcels_for(lead, {"client-1": silo})["client-1"]
    silo.open(parcel, "client-1", lead.public)
    stolen = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    stolen = [b"", *(content for content in stolen if len(content) == 32)]
    assert len(stolen) == 4  # three identities and nothing else that is a key by itself
    for receiver in stolen[1:]:
        for once in stolen:
            for sender in (lead.public, silo.public):
                with pytest.raises(CryptoError, match="do not open"):
                    unseal(receiver, sender, parcel, CONTEXT, once=once)


def test_a_silo_that_asks_again_opens_what_is_sealed_to_its_last_key_alone(tmp_path):
    lead, silos = federation(tmp_path)
    silo = silos["client-1"]
    first = parcels_for(lead, {"client-1": silo})["client-1"]
    second = parcels_for(lead, {"client-1": silo})["client-1"]
    with pytest.raises(CryptoError, match="do not open"):
        silo.open(first, "client-1", lead.public)
    silo.open(second, "client-1", lead.public)
    assert load_keys(silo.keys) == load_keys(lead.keys)


def test_a_one_time_key_is_fresh_and_its_owners_alone(tmp_path):
    lead, silos = federation(tmp_path)
    silo = silos["client-1"]
    assert len({silo.ask(lead.public) for _ in range(5)}) == 5
    assert silo.once.stat().st_mode & 0o777 == 0o600


def test_a_silo_asks_nothing_of_a_lead_that_it_was_not_told_of(tmp_path):
    _, silos = federation(tmp_path)
    with pytest.raises(CryptoError, match="were not accepted"):
        silos["client-1"].ask(SERVER[1])
    assert not silos["client-1"].once.exists()


@pytest.mark.parametrize("given", ["its own", "another silo's", "an earlier proof"])
def test_a_server_cannot_have_secrets_sealed_to_a_one_time_key_of_its_choice(tmp_path, given):
    lead, silos = federation(tmp_path)
    true, other = (asked(silos[name], lead) for name in ("client-1", "client-2"))
    under = proof_under(agree(SERVER[0], true.public), SERVER[1])
    false = {
        "its own": replace(true, once=SERVER[1], proof=under),
        "another silo's": replace(other, public=true.public),
        "an earlier proof": replace(true, once=SERVER[1]),
    }[given]
    with pytest.raises(CryptoError, match="received for client-1 was not made by that client"):
        lead.seal({"client-1": false}, "client-0")
    assert lead.seal({"client-1": true}, "client-0").keys() == {"client-1"}


@pytest.mark.parametrize("fault", ["noise", "cut", "the lead's of another name"])
def test_a_packet_that_does_not_open_leaves_the_one_time_key_for_the_one_that_does(tmp_path, fault):
    """Else a server, or the network, could lock a silo out by a byte."""
    lead, silos = federation(tmp_path)
    silo = silos["client-1"]
    parcels = parcels_for(lead, silos)
    wrong = {"noise": bytes(200), "cut": parcels["client-1"][:-1], "the lead's of another name": parcels["client-2"]}
    with pytest.raises(CryptoError, match="do not open"):
        silo.open(wrong[fault], "client-1", lead.public)
    silo.open(parcels["client-1"], "client-1", lead.public)
    assert silo.key_id == lead.key_id


def test_a_silo_that_was_killed_while_it_opened_asks_again(tmp_path, monkeypatch):
    lead, silos = federation(tmp_path)
    handed_out(lead, silos)
    lead.rotate()
    silo = silos["client-1"]
    before = silo.keys.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(enrolment, "save_keys", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            handed_out(lead, {"client-1": silo})
    assert silo.keys.read_bytes() == before
    assert not silo.once.exists()
    assert silo.key_id != lead.key_id  # by which the server knows that it is to be enrolled
    handed_out(lead, {"client-1": silo})
    assert load_keys(silo.keys) == load_keys(lead.keys)


# Roots go forward only


def test_a_packet_takes_no_root_back_to_an_earlier_one_of_its_line(tmp_path):
    """A lead that missed some runs, or a silo that joins while one begins, must not bring back what was erased."""
    lead, silos = federation(tmp_path)
    handed_out(lead, silos)
    silo, root = silos["client-1"], load_keys(lead.keys).root
    spend_root(silo.keys, root.forward(4))
    third = KeyFolder(tmp_path / "client-3")
    lead.approve({"client-3": third.create(lead.create())})
    handed_out(lead, {**silos, "client-3": third})
    came = load_keys(lead.keys)
    assert came.root == root
    assert load_keys(silo.keys) == replace(came, root=root.forward(5))  # the newer roster all the same
    assert load_keys(third.keys) == came
    assert silo.key_id == lead.key_id


def test_a_packet_with_a_later_root_or_one_of_another_line_is_taken_as_it_is(tmp_path):
    lead, silos = federation(tmp_path)
    handed_out(lead, silos)
    silo, root = silos["client-1"], load_keys(lead.keys).root
    spend_root(silo.keys, root.forward(1))
    spend_root(lead.keys, root.forward(6))
    handed_out(lead, silos)
    assert load_keys(silo.keys).root == root.forward(7)
    lead.rotate()
    handed_out(lead, silos)
    assert load_keys(silo.keys) == load_keys(lead.keys)
    assert load_keys(silo.keys).root.index == 0


def test_how_many_runs_began_is_shown(tmp_path):
    lead, _ = federation(tmp_path)
    spend_root(lead.keys, load_keys(lead.keys).root.forward(2))
    assert lead.show().runs == 3


@pytest.mark.parametrize("change", ["rotate", "seal"])
def test_new_secrets_wait_for_a_run_that_begins_and_are_not_overwritten_by_it(tmp_path, monkeypatch, change):
    """The run's process has read the old keys, and writes the next root of their line a moment later."""
    lead, silos = federation(tmp_path)
    handed_out(lead, silos)
    before, third = load_keys(lead.keys), KeyFolder(tmp_path / "client-3")
    lead.approve({"client-3": third.create(lead.create())})
    in_save, changed = threading.Event(), threading.Event()

    def slow(round_id, keys):
        in_save.set()
        changed.wait(0.5)
        save_keys(round_id, keys)

    monkeypatch.setattr("paraaegis.crypto.keys.save_keys", slow)
    thread = threading.Thread(target=spend_root, args=(lead.keys, before.root))
    thread.start()
    in_save.wait(10)
    lead.rotate() if change == "rotate" else parcels_for(lead, {"client-3": third})
    changed.set()
    thread.join(10)
    after = load_keys(lead.keys)
    assert after.epoch == before.epoch + 1
    if change == "rotate":
        assert after.root.line != before.root.line
    else:
        assert after.root == before.root.forward(1)
        assert "client-3" in after.roster


# Folders of an older version


def retire(folder, epoch=5):
    """Put keys of an older version into a folder, with the roster that lies there."""
    old = {"kind": "paraaegis-federation-keys-1", "profile": "precise", "vote": bytes(32), "ckks": b"secret"}
    write_secret(folder.keys, msgspec.msgpack.encode({**old, "epoch": epoch, "roster": load_keys(folder.keys).roster}))


def test_a_folder_of_an_older_version_is_refused_with_the_command_that_helps_and_that_command_works(
    monkeypatch, capsys, tmp_path
):
    lead, silos = federation(tmp_path)
    handed_out(lead, silos)
    roster = load_keys(lead.keys).roster
    for folder in (lead, *silos.values()):
        retire(folder)
    code, text = call(monkeypatch, capsys, "show", lead.path)
    assert (code, "the lead can make new ones with `paraaegis keys rotate`" in text) == (0, True)
    with pytest.raises(KeyFileError, match="older version"):
        parcels_for(lead, silos)
    assert {folder.key_id for folder in (lead, *silos.values())} == {""}
    assert call(monkeypatch, capsys, "rotate", lead.path)[0] == 0
    after = load_keys(lead.keys)
    assert (after.epoch, after.roster, after.root.index) == (6, roster, 0)
    handed_out(lead, silos)
    for silo in silos.values():
        assert load_keys(silo.keys) == after
    assert b"secret" not in b"".join(folder.keys.read_bytes() for folder in (lead, *silos.values()))


def test_a_silo_takes_over_from_a_lead_of_an_older_version(tmp_path):
    lead, silos = federation(tmp_path)
    handed_out(lead, silos)
    new, other = silos["client-1"], silos["client-2"]
    retire(new)
    retire(other)
    other.create(new.approve({"client-2": other.create()}, take_over=True))
    assert load_keys(new.keys).epoch == 6
    handed_out(new, {"client-2": other})
    assert load_keys(other.keys) == load_keys(new.keys)


def test_a_silo_that_leaves_takes_nothing_of_an_older_version_along(tmp_path):
    lead, silos = federation(tmp_path)
    handed_out(lead, silos)
    retire(lead)
    lead.rotate("client-2")
    assert set(load_keys(lead.keys).roster) == {"client-0", "client-1"}
    with pytest.raises(CryptoError, match="approved one is none"):
        parcels_for(lead, silos)
