"""The errors that this package raises.

    ParaAegisError
    ├── ConfigError        a configuration that cannot be run: unknown key, impossible value, contradiction
    ├── DataError          a data set that is missing, broken or too small
    ├── UpdateError        an update that must not be sent: not finite, wrong length, out of range
    ├── LearnerError       a learner that failed, or returned what a run cannot use
    ├── CryptoError        bytes that do not match this key and profile
    │   └── KeyFileError   a key file that is missing, readable by others or damaged
    ├── PrivacyError       a guarantee that cannot be given, or a budget that is spent
    ├── ProtocolError      an unexpected message: wrong version, run, round, phase, length or method
    │   ├── DriftError     clients whose order or model differ
    │   ├── ForgedError    a sum, share, model or sample count that fails its cryptographic check
    │   └── LostTrustError too many clients whose checks failed for the run to continue
    └── RunError           a run folder that belongs to another configuration or is damaged
        └── BusyError      a run folder that another process is using

Each message says what was received, what is allowed and, where it helps, what to do.
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


class LearnerError(ParaAegisError):
    """A learner that failed, or returned what a run cannot use."""


class CryptoError(ParaAegisError):
    """Bytes that do not match this key and profile."""


class KeyFileError(CryptoError):
    """A key file that is missing, readable by others or damaged."""


class PrivacyError(ParaAegisError):
    """A guarantee that cannot be given, or a budget that is spent."""


class ProtocolError(ParaAegisError):
    """A message that is not expected here."""


class DriftError(ProtocolError):
    """Clients whose secret order or model differ, so that their values must not be aggregated."""


class ForgedError(ProtocolError):
    """A value that fails its cryptographic check. One message for every cause: details would help a forger."""

    def __init__(self) -> None:
        super().__init__(
            "a check of data from the server failed, so this client takes no further part in the run: the server, or "
            "a client that helps it, may be lying; find out why before the next run"
        )


class LostTrustError(ProtocolError):
    """Too many clients left the run for it to continue, because their checks of data from the server failed."""


class RunError(ParaAegisError):
    """A run folder that belongs to another configuration or is damaged."""


class BusyError(RunError):
    """A run folder that another process is using."""
