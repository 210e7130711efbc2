"""A silo's key folder: its identity, the federation's secrets, and either the silos it approved or its lead."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import tomli_w

from paraaegis.config import check_names
from paraaegis.crypto.enrol import KeyRequest, check_approved, fingerprint_of, key_id, open_keys, seal_keys
from paraaegis.crypto.keys import (
    FederationKeys,
    epoch_and_roster,
    holds_retired,
    load_identity,
    load_keys,
    new_identity,
    read_secret,
    save_keys,
    spend_root,
    write_secret,
)
from paraaegis.crypto.ratchet import Root
from paraaegis.crypto.sealed_box import new_pair
from paraaegis.errors import KeyFileError
from paraaegis.files import locked, write_whole

MOST_SILOS = 1000


class KeyFolderContents(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What a key folder holds, without any secret."""

    folder: str
    fingerprint: str = ""
    key_id: str = ""
    runs: int = 0  # begun with these secrets
    note: str = ""
    leads: bool = False
    roster: dict[str, str] = {}  # fingerprints of all clients by name, as delivered with the secrets
    approved: dict[str, str] = {}  # fingerprints by silo, if this one leads
    lead: str = ""  # the fingerprint of the silo from which this one takes secrets


class KeyFolder:
    """The files of one silo.

    identity, keys and once are secrets (0600). approved.toml makes the silo the lead; lead.toml names another lead.
    `once` exists from the moment the silo asks for the federation's secrets until it has them.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.identity, self.keys, self.once = path / "identity", path / "keys", path / "once"
        self._approved, self._lead = path / "approved.toml", path / "lead.toml"

    def create(self, lead: str = "") -> str:
        """Make this silo's key pair if it has none, and record its lead. Returns its fingerprint, for the lead."""
        if lead and self.leads:
            raise KeyFileError(f"{self.path} is a lead with approved silos, so it cannot also follow {lead}")
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not self.identity.exists():
            new_identity(self.identity)
        if lead:
            self._write_lead(_checked(lead), self._taken())
        return fingerprint_of(self.public)

    def _write_lead(self, lead: str, taken: dict[str, dict[str, Any]]) -> None:
        content = tomli_w.dumps({"lead": lead, "taken": taken}).encode()
        write_whole(self._lead, lambda file: file.write(content))

    def _taken(self) -> dict[str, dict[str, Any]]:
        """Epoch and key id of the newest secrets taken from each lead, by the lead's fingerprint."""
        taken: dict[str, dict[str, Any]] | None = _read(self._lead).get("taken")
        if taken is None and self.lead and (held := self._held()):  # a folder from before this was recorded
            return {self.lead: _newest(held)}
        return taken or {}

    @property
    def public(self) -> bytes:
        """The silo's public key."""
        return load_identity(self.identity)[1]

    def approve(self, fingerprints: dict[str, str], take_over: bool = False) -> str:
        """Make this silo the lead: approve others, and make the federation's secrets if there are none.

        With `take_over`, from a lead that left, it makes new secrets, which that lead does not know.
        """
        check_names({**self.approved(), **fingerprints})
        self.create()
        checked = {name: _checked(fingerprint) for name, fingerprint in fingerprints.items()}
        if self.lead and not take_over:
            raise KeyFileError(
                f"{self.path} takes its secrets from the lead {self.lead}, so it cannot be a lead itself. If that lead "
                "has left, use --take-over"
            )
        if take_over and not self.lead:
            raise KeyFileError(f"{self.path} follows no lead, so there is none to take over from; omit --take-over")
        whole = {**self.approved(), **checked}
        if twice := [name for name in whole if list(whole.values()).count(whole[name]) > 1]:
            raise KeyFileError(f"{' and '.join(twice)} cannot have the same fingerprint: each silo has its own")
        if take_over or not self.keys.exists():  # before it leads, since it must not hand out the old secrets
            with locked(self.keys):
                epoch = epoch_and_roster(self.keys)[0] if self.keys.exists() else 0
                save_keys(self.keys, FederationKeys(Root.new(), epoch + 1))
        self._write_approved(whole, self._left())
        self._lead.unlink(missing_ok=True)
        return fingerprint_of(self.public)

    def approved(self) -> dict[str, str]:
        """The fingerprints that this silo has approved as the lead, by silo."""
        approved: dict[str, str] = _read(self._approved).get("approved", {})
        return approved

    @property
    def leads(self) -> bool:
        """Whether this silo hands out the secrets."""
        return self._approved.exists()

    @property
    def lead(self) -> str:
        """The fingerprint of the silo from which this one takes secrets; empty if it was given none."""
        return str(_read(self._lead).get("lead", ""))

    def rotate(self, without: str = "") -> str:
        """Make new secrets for all silos, or all but one that left; they get them when they next meet the server."""
        if not self.leads:
            raise KeyFileError(
                f"{self.path} is not the lead, and only the lead makes new secrets; if a courier delivered its keys, "
                "deliver new ones with `paraaegis keys new`"
            )
        approved, left = self.approved(), self._left()
        if without and without not in [*approved, *left]:
            raise KeyFileError(
                f"{self.path} has not approved {without!r}; it has approved {', '.join(approved) or 'nobody'}"
            )
        if without:
            approved.pop(without, None)
            self._write_approved(approved, sorted({*left, without}))  # first, so that it never gets the new keys
        with locked(self.keys):
            epoch, roster = epoch_and_roster(self.keys)
            roster.pop(without, None)
            save_keys(self.keys, FederationKeys(Root.new(), epoch + 1, roster))
        return self.key_id

    def _left(self) -> list[str]:
        left: list[str] = _read(self._approved).get("left", [])
        return left

    def _write_approved(self, approved: dict[str, str], left: list[str]) -> None:
        write_secret(self._approved, tomli_w.dumps({"approved": approved, "left": left}).encode())

    @property
    def key_id(self) -> str:
        """The public id of the secrets in this folder; empty if there are none."""
        held = self._held()
        return key_id(held) if held else ""

    def _held(self) -> FederationKeys | None:
        """The secrets in this folder; None if there are none or only some of an older version, which get replaced."""
        return load_keys(self.keys) if self.keys.exists() and not holds_retired(self.keys) else None

    def ask(self, lead_public: bytes) -> KeyRequest:
        """A request to the lead for the federation's secrets, to be sealed to a fresh one-time key."""
        once, public = new_pair()
        held = self._held()
        root = held.root if held else None
        request = KeyRequest.make(load_identity(self.identity), public, root, lead_public, self.lead)
        write_secret(self.once, once)
        return request

    def seal(self, asking: Mapping[str, KeyRequest], name: str) -> dict[str, bytes]:
        """As the lead, called `name`: seal secrets and roster to these silos, or to none if one is not approved.

        A silo that is new or has a new identity changes the roster, and with it the epoch of all.
        """
        approved, (private, own) = self.approved(), load_identity(self.identity)
        publics = {silo: request.public for silo, request in asking.items()}
        for silo, request in asking.items():
            check_approved(silo, request.public, approved.get(silo, ""))
            request.check(private, silo)
        with locked(self.keys):
            keys = load_keys(self.keys)
            still_approved = {
                silo: public for silo, public in keys.roster.items() if approved.get(silo) == fingerprint_of(public)
            }
            roster = still_approved | publics | {name: own}
            if roster != keys.roster:
                keys = replace(keys, roster=roster, epoch=keys.epoch + 1)
                save_keys(self.keys, keys)
        return {silo: seal_keys(keys, private, silo, request) for silo, request in asking.items()}

    def erase_root(self, root: Root) -> None:
        """Erase a root whose run has begun, and the one-time key, which could open a packet that contains the root."""
        self.once.unlink(missing_ok=True)
        spend_root(self.keys, root)

    def open(self, sealed: bytes, name: str, lead_public: bytes) -> None:
        """Open and store the secrets that the lead sealed to this silo."""
        lead = self.lead
        if not self.once.exists():
            raise KeyFileError(
                f"{self.path} did not ask for secrets, or has already received them; nothing was changed"
            )
        opened = open_keys(sealed, load_identity(self.identity)[0], read_secret(self.once), name, lead_public, lead)
        if opened.roster.get(name) != self.public:
            raise KeyFileError(
                f"the lead's roster has a different key for {name} from this silo's; nothing was changed. Ask the lead "
                f"to approve this silo's fingerprint, {fingerprint_of(self.public)}"
            )
        taken, received = self._taken(), _newest(opened)
        newest = taken.get(lead, received)  # each lead counts its own epochs, so a new lead starts again
        if received["epoch"] < newest["epoch"] or (received["epoch"] == newest["epoch"] and received != newest):
            raise KeyFileError(
                f"received secrets of epoch {opened.epoch}, but this silo has already had epoch {newest['epoch']} from "
                "its lead: a server may be handing out old ones again; nothing was changed"
            )
        self._write_lead(lead, {**taken, lead: received})  # first: older secrets are refused from here on
        self.once.unlink()  # packets recorded by a server can no longer be opened; after a kill here, ask again
        with locked(self.keys):
            save_keys(self.keys, self._not_behind(opened))

    def _not_behind(self, opened: FederationKeys) -> FederationKeys:
        """The keys, with the root in this folder if that is a later one of the same line."""
        held = self._held()
        if held and held.root.line == opened.root.line and held.root.index > opened.root.index:
            return replace(opened, root=held.root)
        return opened

    def show(self) -> KeyFolderContents:
        """What the folder holds, without any secret."""
        shown = KeyFolderContents(folder=str(self.path), leads=self.leads, approved=self.approved(), lead=self.lead)
        if self.identity.exists():
            shown.fingerprint = fingerprint_of(self.public)
        if held := self._held():
            shown.key_id, shown.runs = key_id(held), held.root.index
            shown.roster = {name: fingerprint_of(public) for name, public in sorted(held.roster.items())}
        elif self.keys.exists():
            shown.note = "keys of an older version; the lead can make new ones with `paraaegis keys rotate`"
        return shown


def _newest(keys: FederationKeys) -> dict[str, Any]:
    return {"epoch": keys.epoch, "key_id": key_id(keys)}


def _checked(fingerprint: str) -> str:
    text = fingerprint.strip().lower()
    if not re.fullmatch(r"([0-9a-f]{4}-){7}[0-9a-f]{4}", text):
        raise KeyFileError(
            f"a fingerprint consists of eight groups of four hexadecimal digits, 4f2a-…, got {fingerprint!r}"
        )
    return text


def deal_keys(folder: Path, names: Collection[str]) -> list[Path]:
    """Make a folder per silo with its key pair and the shared secrets, to be brought there by someone all trust."""
    if len(names) > MOST_SILOS:
        raise KeyFileError(f"keys can be made for at most {MOST_SILOS} silos at a time, got {len(names)}")
    check_names(names)
    folders = [folder / name for name in names]
    if taken := [path for path in [*folders, folder / "server"] if path.exists()]:
        raise KeyFileError(f"{taken[0]} already exists, and keys are never overwritten; choose another folder")
    silos = {path.name: KeyFolder(path) for path in folders}
    for silo in silos.values():
        silo.create()
    keys = FederationKeys(Root.new(), roster={name: silo.public for name, silo in silos.items()})
    for silo in silos.values():
        save_keys(silo.keys, keys)
    server = folder / "server"
    server.mkdir()
    public = {
        "key_id": key_id(keys),
        "clients": {name: public.hex() for name, public in keys.roster.items()},
    }
    (server / "public.toml").write_text(tomli_w.dumps(public))
    return [*folders, server]


def _read(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise KeyFileError(f"{path} is not valid TOML: {error}") from error
