"""Every method, defined once: what happens to which values. Both sides of the protocol follow from its entry.

A new method is one entry here and, if it protects values in a new way, one new part in parts.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from paraaegis.config import Config, meant
from paraaegis.crypto.pool import Pool, SecretPool
from paraaegis.errors import ConfigError
from paraaegis.parts import Encrypted, Lwe, Part, Plain
from paraaegis.plural import plural
from paraaegis.privacy.budget import constant, geometric
from paraaegis.privacy.ledger import ELECTED, REST, WHOLE
from paraaegis.protocol.messages import RoundId
from paraaegis.protocol.protect import ClientHalf, Parallel, Unsplit
from paraaegis.protocol.schedule import Schedule
from paraaegis.protocol.sums import ParallelSum, ServerHalf, Sum

REFERENCE = "fedavg"  # the others are compared with it
ENCRYPTED = "ckks-fedavg"  # everything encrypted, without noise


@dataclass(frozen=True)
class Method:
    """One method. `parts` says how each part is protected: the whole update, or the elected values and the rest.

    Without an entry for the rest, the rest is withheld and added to the next update. `ratio`: whether the share of
    elected values stays the same, decays from round to round, or either.
    """

    summary: str
    parts: Mapping[str, Part]
    ratio: Literal["constant", "decaying", "either"] = "either"

    @property
    def votes(self) -> bool:
        """Whether clients vote on which values are elected."""
        return ELECTED in self.parts

    @property
    def withholds(self) -> bool:
        """Whether values that are not elected stay on the client for now."""
        return self.votes and REST not in self.parts

    def _kinds(self, config: Config) -> set[str]:
        return {part.kind(config) for part in self.parts.values()}

    def ciphers(self, config: Config) -> set[str]:
        """What hides values from the server."""
        return {part.kind(config) for part in self.parts.values() if part.hides}

    @property
    def noised(self) -> bool:
        """Whether some values always carry noise."""
        return any(part.noised for part in self.parts.values())

    @property
    def varies(self) -> bool:
        """Whether that noise differs from round to round."""
        return any(part.series not in (None, constant) for part in self.parts.values())

    @property
    def sums_clean_values(self) -> bool:
        """Whether it encrypts values that carry no noise unless privacy.inside_clip asks for it."""
        return any(part.hides and not part.noised for part in self.parts.values())

    @property
    def costs_like(self) -> tuple[object, ...]:
        """A key that is equal for methods of equal cost: these differ only in how much noise they add, or when."""
        return tuple((name, type(part), part.noised) for name, part in self.parts.items())

    def noised_parts(self, config: Config) -> int:
        """How many parts of an update draw on the budget."""
        noised = config.privacy.unit != "record"  # otherwise the noise is in the training
        return sum(
            (part.noised and noised) or (part.hides and config.privacy.inside_clip > 0) for part in self.parts.values()
        )

    def least_quorum(self, config: Config) -> int:
        """The smallest quorum at which values are protected as claimed; it may exceed the number of clients."""
        return max(part.least_quorum(config) for part in self.parts.values())

    def mask_bits(self, config: Config) -> int | None:
        """Hardness of the masks in bits, with the fewest honest clients in a sum; None without masks."""
        return next((bits for part in self.parts.values() if (bits := part.mask_bits(config)) is not None), None)

    def client(self, config: Config, pool: SecretPool | None = None) -> ClientHalf:
        """The client's half."""
        count = self.noised_parts(config)
        made = {name: part.mechanism(config, count, pool) for name, part in self.parts.items()}
        return Parallel(made[ELECTED], made.get(REST)) if self.votes else Unsplit(made[WHOLE])

    def server(self, config: Config, pool: Pool | None = None) -> ServerHalf:
        """The server's half, from public parameters alone."""

        def new_sum(round_id: RoundId, k: int) -> Sum:
            if not self.votes:
                return self.parts[WHOLE].sum(config, round_id, round_id.length, pool)
            lengths = {ELECTED: k, REST: round_id.length - k}
            sums = [part.sum(config, round_id, lengths[name], pool) for name, part in self.parts.items()]
            return ParallelSum(round_id.length, *sums)

        keyed = any(part.hides or part.noised for part in self.parts.values())
        return ServerHalf(self.votes, new_sum, keyed)

    def check(self, config: Config, length: int | None = None) -> None:
        """Refuse a configuration that this method cannot carry out, for a model of this `length` if it is known."""
        self._check_ratio(config, length)
        keeps_cut = self.noised_parts(config) > 0 and all(part.divides for part in self.parts.values())
        if config.protect.carry and not keeps_cut:
            raise ConfigError(
                "protect.carry applies only to methods that clip an update and can keep what is cut off; "
                f"{config.protect.method} is not one"
            )
        if config.protect.reveal == "server" and self._kinds(config) != {"rlwe"}:
            able = ", ".join(name for name, method in METHODS.items() if method._kinds(config) == {"rlwe"})
            raise ConfigError(
                f"protect.reveal = 'server' applies only to methods that send all values under RLWE ({able}), since "
                f"the server could not tell which parameters others belong to; {config.protect.method} is not one"
            )
        if config.privacy.inside_clip:
            self._check_shared_noise(config)
        if config.privacy.unit == "record" and self.varies:
            raise ConfigError(
                f'{config.protect.method} varies the noise on updates, but with privacy.unit = "record" updates carry '
                "none; use method fedavg"
            )
        if config.privacy.participations and self.varies:
            raise ConfigError(
                f"privacy.participations requires equal noise in every round, which {config.protect.method} does not "
                "have"
            )
        for part in self.parts.values():
            part.check(config, self.noised_parts(config), length)

    def _check_ratio(self, config: Config, length: int | None) -> None:
        protect = config.protect
        if self.ratio == "constant" and protect.decay != 1.0:
            decaying = next(name for name, other in METHODS.items() if other.ratio == "decaying")
            raise ConfigError(
                f"{protect.method} has a constant ratio, so protect.decay must be 1.0, got {protect.decay}; "
                f"use method {decaying} for a ratio that decays"
            )
        if self.withholds and protect.ratio == 0:
            raise ConfigError(f"{protect.method} sends only what is elected, so protect.ratio must be above 0")
        last = config.federation.rounds
        if self.withholds and length and not Schedule(protect.ratio, protect.decay).elected_at(last, length):
            raise ConfigError(
                f"protect.ratio = {protect.ratio:g} elects none of {plural(length, 'value')} in round {last}, and "
                f"{protect.method} sends nothing else; set a larger ratio or a decay closer to 1"
            )

    def _check_shared_noise(self, config: Config) -> None:
        privacy, quorum = config.privacy, config.federation.quorum
        if not self.sums_clean_values:
            able = ", ".join(name for name, method in METHODS.items() if method.sums_clean_values)
            raise ConfigError(
                f"privacy.inside_clip applies only to methods that encrypt values without noise ({able}); "
                f"{config.protect.method} is not one"
            )
        if privacy.colluders >= quorum:
            raise ConfigError(f"privacy.colluders must be below the quorum of {quorum}, got {privacy.colluders}")


def whole(summary: str, part: Part) -> Method:
    """A method that protects all values alike."""
    return Method(summary, {WHOLE: part})


def parallel(
    summary: str, elected: Part, rest: Part | None, ratio: Literal["constant", "decaying", "either"] = "either"
) -> Method:
    """A method that votes, and protects the elected values in one way and the rest in another."""
    parts = {ELECTED: elected} | ({REST: rest} if rest else {})
    if whole_only := [name for name, part in parts.items() if not part.divides]:
        raise ValueError(
            f"{type(parts[whole_only[0]]).__name__} protects whole updates only, so it cannot protect a part"
        )
    return Method(summary, parts, ratio)


METHODS: dict[str, Method] = {
    "fedavg": whole("no protection; the reference", Plain()),
    "dp-fedavg": whole("everything clipped and noised", Plain(constant)),
    "varying-dp": whole(
        "everything clipped and noised, the noise a geometric series within the same budget", Plain(geometric)
    ),
    "lwe-secagg": whole("everything masked by learning with errors; the summed errors are the noise", Lwe()),
    "serial": whole("everything noised, then encrypted", Encrypted(constant)),
    "ckks-fedavg": whole("everything encrypted", Encrypted()),
    "paraaegis-static": parallel(
        "elected part encrypted, rest clipped and noised, constant ratio",
        elected=Encrypted(),
        rest=Plain(constant),
        ratio="constant",
    ),
    "paraaegis-dynamic": parallel(
        "the same with a ratio that decays every round", elected=Encrypted(), rest=Plain(constant), ratio="decaying"
    ),
    "paraaegis-feedback": parallel(
        "elected part encrypted, rest withheld and added to the next update", elected=Encrypted(), rest=None
    ),
}


def find_method(name: str) -> Method:
    """The method of this name."""
    if name not in METHODS:
        raise ConfigError(f"protect.method must be one of {', '.join(METHODS)}, got {name!r}{meant(name, METHODS)}")
    return METHODS[name]


def method_of(config: Config) -> Method:
    """The method that a configuration asks for."""
    return find_method(config.protect.method)
