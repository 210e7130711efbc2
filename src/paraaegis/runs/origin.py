"""Where a run's model came from: recorded with learners of the user's own, which a configuration does not describe."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from paraaegis.config import Config
from paraaegis.errors import RunError
from paraaegis.files import write_whole
from paraaegis.protocol.learner import CheckedLearner
from paraaegis.runs.learners import digest_of_file

_log = logging.getLogger(__name__)


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """The learners of a run: their first model, their clients, the file that they came from."""

    learner: str  # as in the configuration
    code: tuple[str, ...]  # digests of its file, one per version that took part; empty if it has none
    model: str  # digest of the first model
    length: int  # its values
    samples: dict[str, int]  # by client

    def differences(self, other: Origin) -> Iterator[str]:
        """What is different in `other`, except for its code."""
        if list(self.samples) != list(other.samples):
            yield f"its clients were {', '.join(self.samples)}, now {', '.join(other.samples)}"
            return
        for name, samples in self.samples.items():
            if samples != other.samples[name]:
                yield f"{name} had {samples} samples, now {other.samples[name]}"
        if self.length != other.length:
            yield f"its model had {self.length} values, now {other.length}"
        elif self.model != other.model:
            yield "its first model had other values (another network or seed)"


def read_origin(path: Path) -> Origin | None:
    """The origin of a run; None if it used built-in learners."""
    if not path.exists():
        return None
    try:
        return msgspec.json.decode(path.read_bytes(), type=Origin)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise RunError(f"{path} is damaged: {error}") from error


def obstacles(path: Path, origin: Origin, finished: bool) -> list[str]:
    """What is too different from the learners recorded at `path` for the run there to continue.

    An unfinished run may continue with changed code, since errors must be mended; a finished one must not.
    """
    earlier = read_origin(path)
    if earlier is None:
        return []
    if differing := list(earlier.differences(origin)):
        return differing
    if finished and set(origin.code) - set(earlier.code):
        code = f"the code of {origin.learner} has changed since it finished"
        return [f"{code}: restore the file to show or extend this result"]
    return []


def write_origin(path: Path, origin: Origin) -> None:
    """Record the learners of a run that begins or continues, with the code of its earlier parts."""
    earlier = read_origin(path)
    before = earlier.code if earlier is not None else ()
    changed = tuple(code for code in origin.code if code not in before)
    if before and changed:
        _log.warning("the code of %s has changed since the run began; continuing with it", origin.learner)
    content = msgspec.json.format(msgspec.json.encode(msgspec.structs.replace(origin, code=before + changed)), indent=2)
    write_whole(path, lambda file: file.write(content + b"\n"))


def origin_of(config: Config, learners: Mapping[str, CheckedLearner]) -> Origin:
    """The origin of a run of this configuration with these learners."""
    facts, code = next(iter(learners.values())).facts, digest_of_file(config)
    samples = {name: one.samples for name, one in learners.items()}
    return Origin(
        learner=config.learner, code=(code,) if code else (), model=facts.model, length=facts.length, samples=samples
    )
