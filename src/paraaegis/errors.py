"""Everything this package raises on purpose.

    ParaAegisError
    ├── ConfigError        a configuration that cannot be run: unknown key, impossible value, contradiction
    ├── DataError          a data set that is missing, broken or too small
    ├── UpdateError        an update that must not be sent: not finite, wrong length, out of range
    ├── CryptoError        bytes that are not what this key and profile made
    │   └── KeyFileError   a key file that is missing, readable by others or damaged
    ├── PrivacyError       a guarantee that cannot be given, or a budget that is spent
    ├── ProtocolError      a message that does not belong here: version, run, round, phase, length, method
    │   ├── DriftError     clients whose order or model differ
    │   ├── ForgedError    a sum, share, model or sample count that its key does not confirm
    │   └── LostTrustError too many clients whose checks failed for the run to continue
    └── RunError           a run folder that belongs to another configuration or is damaged
        └── BusyError      one in which another process is at work

Each message says what came, what is allowed and, where it helps, what to do.
"""

from __future__ import annotations


class ParaAegisError(Exception):
    """Base of all errors of this package."""


class ConfigError(ParaAegisError):
    """A configuration that cannot be run."""


class DataError(ParaAegisError):
    """A data set that is missing, broken or too small."""


class UpdateError(ParaAegisError):
    """An update that must not be sent."""


class CryptoError(ParaAegisError):
    """Bytes that are not what this key and profile made."""


class KeyFileError(CryptoError):
    """A key file that is missing, readable by others or damaged."""


class PrivacyError(ParaAegisError):
    """A guarantee that cannot be given, or a budget that is spent."""


class ProtocolError(ParaAegisError):
    """A message that does not belong here."""


class DriftError(ProtocolError):
    """Clients whose secret order or model differ, so that their values must not be mixed."""


class ForgedError(ProtocolError):
    """Something that its key does not confirm. One text for every cause: what failed would help a forger."""

    def __init__(self) -> None:
        super().__init__(
            "a check of what the server passed on failed, so this client takes no further part in the run: the server "
            "or a client that helps it may be lying; find out why before the next run"
        )


class LostTrustError(ProtocolError):
    """Too many clients ended the run for it to continue, because their checks of what the server passed on failed."""


class RunError(ParaAegisError):
    """A run folder that belongs to another configuration or is damaged."""


class BusyError(RunError):
    """A run folder that another process is at work in."""
