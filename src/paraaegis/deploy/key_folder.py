"""A silo's key folder: its identity, the federation's secrets, whom it approved or who leads it."""

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
    roster: dict[str, str] = {}  # fingerprints of all clients by name, as the secrets came with them
    approved: dict[str, str] = {}  # fingerprints by silo, at a lead
    lead: str = ""  # the fingerprint of the silo that this one takes secrets from


class KeyFolder:
    """identity, keys and once are secrets (0600); approved.toml makes a silo the lead, lead.toml names another's.

    `once` is there between the moment when a silo asks for the federation's secrets and that when it has them.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.identity, self.keys, self.once = path / "identity", path / "keys", path / "once"
        self._approved, self._lead = path / "approved.toml", path / "lead.toml"

    def create(self, lead: str = "") -> str:
        """Make this silo's pair, once; remember who leads. Returns the fingerprint to tell the lead."""
        if lead and self.leads:
            raise KeyFileError(f"{self.path} leads, with silos that it approved; it cannot follow {lead} as well")
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
        """Epoch and key id of the newest secrets that came from each lead, by its fingerprint."""
        found: dict[str, dict[str, Any]] | None = _read(self._lead).get("taken")
        if found is None and self.lead and (held := self._held()):  # a folder of before it was written down
            return {self.lead: _newest(held)}
        return found or {}

    @property
    def public(self) -> bytes:
        """The silo's public key."""
        return load_identity(self.identity)[1]

    def approve(self, fingerprints: dict[str, str], take_over: bool = False) -> str:
        """Make this silo the lead: approve others, and make the federation's secrets if there are none.

        To take over from a lead that left makes new ones, which that lead does not know.
        """
        check_names({**self.approved(), **fingerprints})
        self.create()
        checked = {name: _checked(fingerprint) for name, fingerprint in fingerprints.items()}
        if self.lead and not take_over:
            raise KeyFileError(
                f"{self.path} takes its secrets from the lead {self.lead}; it cannot lead as well, unless that one "
                "left: --take-over"
            )
        if take_over and not self.lead:
            raise KeyFileError(f"{self.path} follows no lead that it could take over from; leave --take-over out")
        whole = {**self.approved(), **checked}
        if twice := [name for name in whole if list(whole.values()).count(whole[name]) > 1]:
            raise KeyFileError(f"{' and '.join(twice)} cannot have the same fingerprint: each silo has its own")
        if take_over or not self.keys.exists():  # before it leads: the old secrets are nothing to hand out
            with locked(self.keys):
                epoch = epoch_and_roster(self.keys)[0] if self.keys.exists() else 0
                save_keys(self.keys, FederationKeys(Root.new(), epoch + 1))
        self._write_approved(whole, self._left())
        self._lead.unlink(missing_ok=True)
        return fingerprint_of(self.public)

    def approved(self) -> dict[str, str]:
        """The fingerprints that this silo approved, as lead."""
        found: dict[str, str] = _read(self._approved).get("approved", {})
        return found

    @property
    def leads(self) -> bool:
        """Whether this silo hands out the secrets."""
        return self._approved.exists()

    @property
    def lead(self) -> str:
        """The fingerprint of the silo that this one takes secrets from; empty if it was told none."""
        return str(_read(self._lead).get("lead", ""))

    def rotate(self, without: str = "") -> str:
        """New secrets for all, or all but one silo, which left; the others get them when they next meet the server."""
        if not self.leads:
            raise KeyFileError(f"{self.path} does not lead; the lead makes new secrets")
        approved, left = self.approved(), self._left()
        if without and without not in [*approved, *left]:
            raise KeyFileError(f"{self.path} approved {', '.join(approved) or 'nobody'}, not {without!r}")
        if without:
            approved.pop(without, None)
            self._write_approved(approved, sorted({*left, without}))  # first, so that the new keys never reach it
        with locked(self.keys):
            epoch, roster = epoch_and_roster(self.keys)
            roster.pop(without, None)
            save_keys(self.keys, FederationKeys(Root.new(), epoch + 1, roster))
        return self.key_id

    def _left(self) -> list[str]:
        found: list[str] = _read(self._approved).get("left", [])
        return found

    def _write_approved(self, approved: dict[str, str], left: list[str]) -> None:
        write_secret(self._approved, tomli_w.dumps({"approved": approved, "left": left}).encode())

    @property
    def key_id(self) -> str:
        """The public name of the secrets that lie here; empty if there are none."""
        held = self._held()
        return key_id(held) if held else ""

    def _held(self) -> FederationKeys | None:
        """The secrets that lie here; None if there are none, or some of an older version, which new ones replace."""
        return load_keys(self.keys) if self.keys.exists() and not holds_retired(self.keys) else None

    def ask(self, lead_public: bytes) -> KeyRequest:
        """Ask the lead for its secrets, to be sealed to a fresh one-time key."""
        once, public = new_pair()
        held = self._held()
        root = held.root if held else None
        asking = KeyRequest.make(load_identity(self.identity), public, root, lead_public, self.lead)
        write_secret(self.once, once)
        return asking

    def seal(self, asking: Mapping[str, KeyRequest], name: str) -> dict[str, bytes]:
        """As the lead, called `name`: secrets and roster for each of these silos; refused whole if one is not approved.

        A silo that is new, or has a new identity, changes the roster, which is then a new epoch for all.
        """
        approved, (private, own) = self.approved(), load_identity(self.identity)
        publics = {silo: asked.public for silo, asked in asking.items()}
        for silo, asked in asking.items():
            check_approved(silo, asked.public, approved.get(silo, ""))
            asked.check(private, silo)
        with locked(self.keys):
            keys = load_keys(self.keys)
            known = {
                silo: public for silo, public in keys.roster.items() if approved.get(silo) == fingerprint_of(public)
            }
            roster = known | publics | {name: own}
            if roster != keys.roster:
                keys = replace(keys, roster=roster, epoch=keys.epoch + 1)
                save_keys(self.keys, keys)
        return {silo: seal_keys(keys, private, silo, asked) for silo, asked in asking.items()}

    def erase_root(self, root: Root) -> None:
        """Erase a root whose run has begun, and what a packet that was never opened could bring it back by."""
        self.once.unlink(missing_ok=True)
        spend_root(self.keys, root)

    def open(self, sealed: bytes, name: str, lead_public: bytes) -> None:
        """Take up secrets that the lead sealed to this silo."""
        lead = self.lead
        if not self.once.exists():
            raise KeyFileError(f"{self.path} has not asked for secrets, or has got them; nothing was changed")
        opened = open_keys(sealed, load_identity(self.identity)[0], read_secret(self.once), name, lead_public, lead)
        if opened.roster.get(name) != self.public:
            raise KeyFileError(
                f"the lead's roster has another key for {name} than this silo's; nothing was changed. Ask the lead to "
                f"approve this silo's fingerprint, {fingerprint_of(self.public)}"
            )
        taken, came = self._taken(), _newest(opened)
        known = taken.get(lead, came)  # epochs are one lead's; a new one, whom people named, begins its own
        if came["epoch"] < known["epoch"] or (came["epoch"] == known["epoch"] and came != known):
            raise KeyFileError(
                f"secrets of epoch {opened.epoch} came, this silo has had epoch {known['epoch']} of its lead: a server "
                "may be handing out old ones again; nothing was changed"
            )
        self._write_lead(lead, {**taken, lead: came})  # first: what is older is refused from here on
        self.once.unlink()  # what a server recorded opens no more; a kill here means to ask again
        with locked(self.keys):
            save_keys(self.keys, self._not_behind(opened))

    def _not_behind(self, opened: FederationKeys) -> FederationKeys:
        """These keys with the root that lies here, if it is a later one of the same line."""
        held = self._held()
        if held and held.root.line == opened.root.line and held.root.index > opened.root.index:
            return replace(opened, root=held.root)
        return opened

    def show(self) -> KeyFolderContents:
        """What lies here, without any secret."""
        shown = KeyFolderContents(folder=str(self.path), leads=self.leads, approved=self.approved(), lead=self.lead)
        if self.identity.exists():
            shown.fingerprint = fingerprint_of(self.public)
        if held := self._held():
            shown.key_id, shown.runs = key_id(held), held.root.index
            shown.roster = {name: fingerprint_of(public) for name, public in sorted(held.roster.items())}
        elif self.keys.exists():
            shown.note = "keys of an older version; the lead makes new ones with `paraaegis keys rotate`"
        return shown


def _newest(keys: FederationKeys) -> dict[str, Any]:
    return {"epoch": keys.epoch, "key_id": key_id(keys)}


def _checked(fingerprint: str) -> str:
    text = fingerprint.strip().lower()
    if not re.fullmatch(r"([0-9a-f]{4}-){7}[0-9a-f]{4}", text):
        raise KeyFileError(f"a fingerprint is eight groups of four hexadecimal digits, 4f2a-…, got {fingerprint!r}")
    return text


def deal_keys(folder: Path, names: Collection[str]) -> list[Path]:
    """A folder for each silo with its own pair and the common secrets, to be carried there by someone all trust."""
    if len(names) > MOST_SILOS:
        raise KeyFileError(f"keys are dealt to at most {MOST_SILOS} silos at a time, got {len(names)}")
    check_names(names)
    folders = [folder / name for name in names]
    if taken := [path for path in [*folders, folder / "server"] if path.exists()]:
        raise KeyFileError(f"{taken[0]} is there already; choose another folder, keys are never overwritten")
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
