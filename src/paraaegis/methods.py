"""Every method as a composition of guards. A new one is one entry here and, if it needs one, one new protector."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable
from dataclasses import dataclass

from paraaegis.config import Config
from paraaegis.crypto.ckks import Profile, Secret, profile
from paraaegis.crypto.keys import FederationKeys
from paraaegis.errors import ConfigError
from paraaegis.privacy.calibrate import remark_multiplier, remark_sensitivity, tight_multiplier
from paraaegis.privacy.gaussian import Gaussian
from paraaegis.protocol.combine import CkksSum, GridSum, ParallelSum, ServerHalf
from paraaegis.protocol.protect import Ckks, ClientHalf, Guard, Parallel, Plain, Whole


@dataclass(frozen=True)
class Materials:
    """What a client's half may be made of."""

    config: Config
    keys: FederationKeys

    @property
    def gaussian(self) -> Guard:
        """Clipped and noised, in clear."""
        return Guard(Plain(), noise(self.config))

    @property
    def ckks(self) -> Guard:
        """Encrypted, otherwise untouched."""
        return Guard(Ckks(Secret(profile(self.keys.profile), self.keys.ckks)))


@dataclass(frozen=True)
class Method:
    """A name's two halves: the client's from configuration and keys, the server's from public parameters."""

    summary: str
    client: Callable[[Materials], ClientHalf]
    server: Callable[[Profile], ServerHalf]
    encrypts: bool = False


def _grid(_: Profile) -> ServerHalf:
    return ServerHalf(votes=False, open=lambda length, _k: GridSum(length))


def _cipher(profile: Profile) -> ServerHalf:
    return ServerHalf(votes=False, open=lambda length, _k: CkksSum(profile, length))


def _parallel(profile: Profile) -> ServerHalf:
    return ServerHalf(votes=True, open=lambda length, k: ParallelSum(length, CkksSum(profile, k), GridSum(length - k)))


def _withheld(profile: Profile) -> ServerHalf:
    return ServerHalf(votes=True, open=lambda length, k: ParallelSum(length, CkksSum(profile, k)))


METHODS: dict[str, Method] = {
    "fedavg": Method("no protection; the reference", lambda _: Whole(Guard(Plain())), _grid),
    "dp-fedavg": Method("everything clipped and noised", lambda m: Whole(m.gaussian), _grid),
    "ckks-fedavg": Method("everything under CKKS", lambda m: Whole(m.ckks), _cipher, encrypts=True),
    "paraaegis-static": Method(
        "elected part under CKKS, rest clipped and noised, constant ratio",
        lambda m: Parallel(m.ckks, m.gaussian),
        _parallel,
        encrypts=True,
    ),
    "paraaegis-dynamic": Method(
        "the same with a ratio that decays every round",
        lambda m: Parallel(m.ckks, m.gaussian),
        _parallel,
        encrypts=True,
    ),
    "paraaegis-feedback": Method(
        "elected part under CKKS, rest withheld and added to the next update",
        lambda m: Parallel(m.ckks, None),
        _withheld,
        encrypts=True,
    ),
}


def find_method(name: str) -> Method:
    """The method of this name."""
    if name not in METHODS:
        close = difflib.get_close_matches(name, METHODS, n=1)
        hint = f" (did you mean {close[0]!r}?)" if close else ""
        raise ConfigError(f"protect.method must be one of {', '.join(METHODS)}, got {name!r}{hint}")
    return METHODS[name]


def noise(config: Config) -> Gaussian:
    """The clipping and noise that a configuration asks for; every client derives it for itself."""
    privacy, federation = config.privacy, config.federation
    if math.isinf(privacy.epsilon):
        return Gaussian(privacy.clip, (0.0,) * federation.rounds)
    if privacy.calibration == "tight":
        sigma = privacy.clip * tight_multiplier(privacy.epsilon, privacy.delta, federation.rounds)
    else:
        if federation.min_samples < 1:
            raise ConfigError("calibration 'paper' needs federation.min_samples, the smallest client's data size")
        sensitivity = remark_sensitivity(privacy.clip, federation.min_samples)
        sigma = sensitivity * remark_multiplier(privacy.epsilon, privacy.delta, federation.rounds, federation.fraction)
    return Gaussian(privacy.clip, (sigma,) * federation.rounds)
