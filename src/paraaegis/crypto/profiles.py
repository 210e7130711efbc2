"""CKKS settings by name. Ciphertexts are only added, so one prime is enough; SEAL checks for 128-bit security."""

from __future__ import annotations

import math
from dataclasses import dataclass

from paraaegis.config import meant
from paraaegis.errors import ConfigError
from paraaegis.fixed_point import STEP

CIPHERTEXTS = 16  # in a chunk
_ERROR_STD = 3.2  # of SEAL's encryption error, in coefficient units
_MARGIN = 10  # standard deviations between the summed error and half a step


@dataclass(frozen=True)
class Profile:
    """One CKKS setting. Sums of values on the grid `step` are exact."""

    name: str
    degree: int
    bits: int
    scale_bits: int
    step: float

    @property
    def reach(self) -> float:
        """The largest |value| of a normalised sum: its coefficients, up to √2 larger, must stay under q/2."""
        return float(2.0 ** (self.bits - 1 - self.scale_bits) / math.sqrt(2) * (1 - 2.0**-10))

    @property
    def max_clients(self) -> int:
        """The most clients whose sum decrypts exactly: half a step is ten standard deviations of the summed error.

        One client's error in a slot's real part has variance degree/2 · (3.2² + 1/12) / scale².
        """
        std = math.sqrt(self.degree / 2 * (_ERROR_STD**2 + 1 / 12)) / 2.0**self.scale_bits
        return int((self.step / 2 / (_MARGIN * std)) ** 2)

    @property
    def unit(self) -> int:
        """The profile's step in whole grid steps."""
        return round(self.step / STEP)

    @property
    def chunk(self) -> int:
        """Values in a full chunk; a ciphertext holds `degree` values, two in each complex slot."""
        return self.degree * CIPHERTEXTS


PROFILES = {
    profile.name: profile
    for profile in (
        # 7.6 bytes per value up, 15.1 down; exact on the grid of 2^-22 for sums within ±46,000.
        Profile("precise", degree=4096, bits=54, scale_bits=37, step=STEP),
        # 6.1 bytes per value up, 12.1 down; on a grid of 2^-19 (an error of at most 10^-6 per client), for sums
        # within ±45: models without BatchNorm, or with small running statistics.
        Profile("compact", degree=2048, bits=40, scale_bits=33, step=2.0**-19),
    )
}


def profile(name: str) -> Profile:
    """The profile with this name."""
    if name not in PROFILES:
        raise ConfigError(f"protect.profile must be one of {', '.join(PROFILES)}, got {name!r}{meant(name, PROFILES)}")
    return PROFILES[name]


def fitting(peak: float, clients: int) -> str:
    """A hint for error messages: a profile for sums up to `peak` over this many clients."""
    names = [each.name for each in PROFILES.values() if peak <= each.reach and clients <= each.max_clients]
    return (
        f"profile {names[0]!r} would fit"
        if names
        else "no profile fits: the model diverges or there are too many clients; lower the noise or the learning rate"
    )
