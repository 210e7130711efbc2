"""Key folders of a lead and two silos, what they exchange, and the `paraaegis keys` command."""

import pytest

from paraaegis.cli import main
from paraaegis.crypto.keys import write_secret
from paraaegis.deploy.key_folder import KeyFolder

SILOS = ("client-0", "client-1", "client-2")


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


def call(monkeypatch, capsys, *arguments):
    monkeypatch.setattr("sys.argv", ["paraaegis", "keys", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    found = capsys.readouterr()
    return ended.value.code, found.out + found.err
