"""Every method as a composition of guards. A new one is one entry here and, if it needs one, one new protector."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from paraaegis.config import Config, meant
from paraaegis.crypto import lwe
from paraaegis.crypto.ckks import profile
from paraaegis.crypto.pool import Pool, SecretPool
from paraaegis.errors import ConfigError
from paraaegis.plural import plural
from paraaegis.privacy.budget import inside_noise, noise
from paraaegis.protocol.encodings import Ckks, Plain
from paraaegis.protocol.lwe_round import LweHalf
from paraaegis.protocol.protect import ClientHalf, Mechanism, Parallel, Unsplit
from paraaegis.protocol.sums import CkksSum, FixedPointSum, ParallelSum, ServerHalf


@dataclass(frozen=True)
class ClientParts:
    """What a client's half may be made of."""

    config: Config
    run: str = "run"
    pool: SecretPool | None = None

    @property
    def gaussian(self) -> Mechanism:
        """Clipped and noised, in clear."""
        return self._outside(1)

    @property
    def ckks(self) -> Mechanism:
        """Encrypted; clipped, with shared noise in the sum, where privacy.inside_clip asks for it."""
        return self._inside(1)

    @property
    def parallel(self) -> Parallel:
        """The paper's two parts; where both are noised they share the budget."""
        parts = noised_parts(self.config)
        return Parallel(self._inside(parts), self._outside(parts))

    def _outside(self, parts: int) -> Mechanism:
        return Mechanism(Plain(), noise(self.config, parts), feedback=self.config.protect.carry)

    def _inside(self, parts: int) -> Mechanism:
        shared = inside_noise(self.config, parts)
        if shared is None:
            return Mechanism(self._carrier)
        carry, quorum = self.config.protect.carry, self.config.federation.quorum
        return Mechanism(self._carrier, shared, carry, quorum, self.config.privacy.colluders)

    @property
    def both(self) -> Mechanism:
        """Clipped and noised, then encrypted."""
        return Mechanism(self._carrier, noise(self.config), feedback=self.config.protect.carry)

    @property
    def lwe(self) -> LweHalf:
        """Masked by LWE, with the error as the noise."""
        quorum, colluders = self.config.federation.quorum, self.config.privacy.colluders
        return LweHalf(self.run, self.config.protect.lwe, noise(self.config), quorum, colluders)

    @property
    def _carrier(self) -> Ckks:
        return Ckks(profile(self.config.protect.profile), self.pool)


@dataclass(frozen=True)
class Method:
    """A name's two halves: the client's from configuration and keys, the server's from public parameters."""

    summary: str
    client: Callable[[ClientParts], ClientHalf]
    server: Callable[[Config, Pool | None], ServerHalf]
    encrypts: bool = False
    noisy: bool = True
    inside: bool = False  # whether it encrypts values that carry no noise unless privacy.inside_clip is set


def _grid(_config: Config, _pool: Pool | None) -> ServerHalf:
    return ServerHalf(votes=False, open=lambda length, _k: FixedPointSum(length))


def _plain(_config: Config, _pool: Pool | None) -> ServerHalf:
    return ServerHalf(votes=False, open=lambda length, _k: FixedPointSum(length), keyed=False)


def _cipher(config: Config, pool: Pool | None) -> ServerHalf:
    chosen = profile(config.protect.profile)
    return ServerHalf(votes=False, open=lambda length, _k: CkksSum(chosen, length, pool))


def _parallel(config: Config, pool: Pool | None) -> ServerHalf:
    chosen = profile(config.protect.profile)
    return ServerHalf(
        votes=True, open=lambda length, k: ParallelSum(length, CkksSum(chosen, k, pool), FixedPointSum(length - k))
    )


def _withheld(config: Config, pool: Pool | None) -> ServerHalf:
    chosen = profile(config.protect.profile)
    return ServerHalf(votes=True, open=lambda length, k: ParallelSum(length, CkksSum(chosen, k, pool)))


def _shares(config: Config, _pool: Pool | None) -> ServerHalf:
    return ServerHalf(votes=False, open=lambda length, _k: FixedPointSum(length, "lwe"), shares=config.protect.lwe)


METHODS: dict[str, Method] = {
    "fedavg": Method("no protection; the reference", lambda _: Unsplit(Mechanism(Plain())), _plain, noisy=False),
    "dp-fedavg": Method("everything clipped and noised", lambda m: Unsplit(m.gaussian), _grid),
    "varying-dp": Method(
        "everything clipped and noised, the noise a geometric series within the same budget",
        lambda m: Unsplit(m.gaussian),
        _grid,
    ),
    "lwe-secagg": Method(
        "everything masked by learning with errors; the summed errors are the noise", lambda m: m.lwe, _shares
    ),
    "serial": Method("everything noised, then under CKKS", lambda m: Unsplit(m.both), _cipher, encrypts=True),
    "ckks-fedavg": Method(
        "everything under CKKS", lambda m: Unsplit(m.ckks), _cipher, encrypts=True, noisy=False, inside=True
    ),
    "paraaegis-static": Method(
        "elected part under CKKS, rest clipped and noised, constant ratio",
        lambda m: m.parallel,
        _parallel,
        encrypts=True,
        inside=True,
    ),
    "paraaegis-dynamic": Method(
        "the same with a ratio that decays every round",
        lambda m: m.parallel,
        _parallel,
        encrypts=True,
        inside=True,
    ),
    "paraaegis-feedback": Method(
        "elected part under CKKS, rest withheld and added to the next update",
        lambda m: Parallel(m.ckks, None),
        _withheld,
        encrypts=True,
        noisy=False,
        inside=True,
    ),
}


def find_method(name: str) -> Method:
    """The method of this name."""
    if name not in METHODS:
        raise ConfigError(f"protect.method must be one of {', '.join(METHODS)}, got {name!r}{meant(name, METHODS)}")
    return METHODS[name]


def noised_parts(config: Config) -> int:
    """Parts of an update that draw on one budget: two where inside and outside are both noised."""
    return 2 if config.privacy.inside_clip and find_method(config.protect.method).noisy else 1


def check_carry(config: Config) -> None:
    """Refuse to carry over what clipping cuts where nothing is clipped, or where masks need all of it."""
    method = config.protect.method
    if method == "lwe-secagg" or not (find_method(method).noisy or config.privacy.inside_clip):
        raise ConfigError(f"protect.carry is for methods that clip an update and can keep what is cut, not {method}")


def check_inside(config: Config) -> None:
    """Refuse noise inside where nothing is encrypted without noise, or where nobody is left to make it."""
    method, privacy, quorum = config.protect.method, config.privacy, config.federation.quorum
    if not find_method(method).inside:
        able = ", ".join(name for name, one in METHODS.items() if one.inside)
        raise ConfigError(
            f"privacy.inside_clip is for methods that encrypt values without noise ({able}), not {method}"
        )
    if privacy.colluders >= quorum:
        raise ConfigError(f"privacy.colluders must be under the quorum {quorum}, got {privacy.colluders}")
    inside_noise(config, noised_parts(config))


def least_quorum(config: Config) -> int:
    """The smallest quorum at which lwe-secagg keeps its promise; 0 for other methods. It may exceed the clients."""
    if config.protect.method != "lwe-secagg":
        return 0
    colluders = config.privacy.colluders
    return max((config.sampled + colluders) // 2 + 1, colluders + lwe.FORMS[config.protect.lwe].least_honest)


def _too_few(config: Config, least: int) -> str:
    """Why lwe-secagg needs a larger quorum, or more clients, and what can be done."""
    form, colluders, sampled = lwe.FORMS[config.protect.lwe], config.privacy.colluders, config.sampled
    fewer = max((sampled + colluders) // 2 + 1, colluders + lwe.FORMS["matrix"].least_honest)
    ways = [f"federation.quorum = {least}"] if least <= sampled else [f"federation.clients = {least} or more"]
    if form.name == "ring" and fewer <= sampled:
        ways.append(f"protect.lwe = 'matrix' (slower) with federation.quorum = {fewer}")
    if colluders > 1:
        ways.append("a lower privacy.colluders")
    return (
        f"lwe-secagg in {form.name} form with {plural(sampled, 'client')} per round, {colluders} of whom may help "
        f"the server, needs a quorum of {least} or more, got {config.federation.quorum}. Every sum needs "
        f"{form.least_honest} honest clients, or the sum of their secrets tells too much about one client's secret, "
        f"and two groups of clients must not be able to open two different sums. Set {', or '.join(ways)}"
    )


def check_shares(config: Config, length: int) -> None:
    """Refuse what lwe-secagg cannot do: no noise, noise too small to hide, or a quorum that shares cannot serve."""
    if math.isinf(config.privacy.epsilon):
        raise ConfigError("lwe-secagg is secure by its noise: privacy.epsilon must be finite")
    quorum, colluders = config.federation.quorum, config.privacy.colluders
    if quorum < (least := least_quorum(config)):
        raise ConfigError(_too_few(config, least))
    gaussian = noise(config)
    for sigma in (min(gaussian.sigmas), max(gaussian.sigmas)):  # weights scale both alike, so they do not matter here
        lwe.lwe_parameters(gaussian.clip, sigma, length, config.sampled, quorum, colluders)
