"""Settings of the RLWE cipher by name: how values become the messages of coefficients, and which sums are exact.

The sum of the clients' messages m and errors e is exact while |2^10·m + e| stays below half the modulus, about 2^49,
and |e| below 2^9. An error has variance 10.5, so ten standard deviations of the sum over 249 clients are below 2^9;
that more occurs has a probability below 2^-71 per coefficient. Up to 24 clients even the largest errors fit.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paraaegis.compiled import compiled
from paraaegis.crypto.residues import BOUND, DIGIT_BITS, ERROR_BITS, SCALE_BITS, readonly
from paraaegis.crypto.ring import DEGREE, MODULUS, Words
from paraaegis.errors import UpdateError
from paraaegis.fixed_point import STEP, slices
from paraaegis.parallel import parallel_map
from paraaegis.plural import plural
from paraaegis.types import FixedPoint

POLYNOMIALS = 64  # in a full chunk
COEFFICIENTS = DEGREE * POLYNOMIALS
LARGEST_ERROR = (1 << (SCALE_BITS - 1)) - 1  # of a sum that decrypts exactly
MARGIN = 10  # standard deviations of the summed error
_HALF = 1 << (DIGIT_BITS - 1)
_MESSAGE = ((MODULUS - 1) // 2 - LARGEST_ERROR) >> SCALE_BITS  # the largest message of a sum that decrypts exactly


@dataclass(frozen=True)
class Profile:
    """One setting: `lanes` values per coefficient, one or two, on the grid `step`."""

    name: str
    lanes: int
    step: float

    @property
    def unit(self) -> int:
        """The profile's step in whole grid steps."""
        return round(self.step / STEP)

    @property
    def reach(self) -> float:
        """The largest |value| of a sum that decrypts exactly."""
        return self.reach_units * self.step

    @property
    def reach_units(self) -> int:
        """The reach in whole steps of the profile. Two lanes need |x|·(1 + 2^20) to be a message and |x| < 2^19."""
        return _MESSAGE if self.lanes == 1 else min(_HALF - 1, _MESSAGE // (1 + (1 << DIGIT_BITS)))

    @property
    def max_clients(self) -> int:
        """The most clients whose summed error is below 2^9 by ten standard deviations."""
        return ((LARGEST_ERROR + 1) ** 2 - 1) * 4 // (MARGIN**2 * ERROR_BITS)

    @property
    def chunk(self) -> int:
        """Values in a full chunk."""
        return COEFFICIENTS * self.lanes

    def coefficients(self, values: int) -> int:
        """The number of coefficients that hold so many values of one chunk."""
        return -(-values // self.lanes)

    @property
    def offset(self) -> int:
        """What `write_digits` and errors, both unsigned, add to a coefficient: see `residues.encode`."""
        return (_HALF << (SCALE_BITS + DIGIT_BITS)) + (_HALF << SCALE_BITS) * (self.lanes - 1) + BOUND


PROFILES = {
    profile.name: profile
    for profile in (
        # 6.25 bytes per value up and down; exact on the grid of 2^-22 for sums within ±130,990.
        Profile("wide", lanes=1, step=STEP),
        # 3.13 bytes per value up and down; on a grid of 2^-17 (an error of at most 4·10^-6 per client), for sums
        # within ±3.99: models without BatchNorm, or with small running statistics.
        Profile("double", lanes=2, step=2.0**-17),
    )
}


def largest_error(clients: int) -> int:
    """The largest |error| of a sum over `clients` clients: their bounds, or ten standard deviations if less."""
    return min(BOUND * clients, isqrt(MARGIN**2 * ERROR_BITS * clients // 4))


def rounded(profile: Profile, steps: FixedPoint) -> FixedPoint:
    """Steps rounded to the profile's own grid, halves to even."""
    return steps if profile.unit == 1 else (np.rint(steps / profile.unit) * profile.unit).astype(np.int64)


def check_reach(profile: Profile, steps: FixedPoint, clients: int) -> None:
    """Refuse values whose sum over `clients` could wrap around or decrypt inexactly."""
    peaks = parallel_map(lambda _, span: max(int(steps[span].max()), -int(steps[span].min())), slices(steps.size))
    peak = max(peaks, default=0)
    if clients > profile.max_clients:
        raise UpdateError(
            f"profile {profile.name!r} sums up to {profile.max_clients} clients exactly, got {clients}; "
            f"{_fitting(peak, clients)}"
        )
    if not _fits(profile, peak, clients):
        raise UpdateError(
            f"profile {profile.name!r} supports sums within ±{profile.reach:.6g}, but {plural(clients, 'client')} with "
            f"values up to {peak * STEP:.6g} could reach {peak * clients * STEP:.6g}; {_fitting(peak, clients)}"
        )


def _fits(profile: Profile, peak: int, clients: int) -> bool:
    """Whether `clients` values of up to `peak` grid steps, rounded by the profile, have a sum within its reach."""
    return round(peak / profile.unit) * clients <= profile.reach_units and clients <= profile.max_clients


def _fitting(peak: int, clients: int) -> str:
    names = [name for name, each in PROFILES.items() if _fits(each, peak, clients)]
    return (
        f"profile {names[0]!r} would fit"
        if names
        else "no profile fits: the model diverges or there are too many clients; lower the noise or the learning rate"
    )


def write_digits(profile: Profile, steps: FixedPoint, low: Words, high: Words) -> None:
    """Write the messages of a chunk's coefficients as digits: message·2^10 + offset = low + high·2^30.

    With two lanes, coefficient i of n holds values i and n + i, each rounded, the former in its lower digit; a last
    coefficient may lack the latter, which counts as zero.
    """
    if profile.lanes == 1:
        compiled(_halves)(readonly(steps), low, high)
        return
    count = -(-steps.size // 2)
    second = steps[count:]
    high[second.size :] = _HALF
    shift = profile.unit.bit_length() - 1
    compiled(_digits)(readonly(steps[:count]), low, shift, SCALE_BITS)
    compiled(_digits)(readonly(second), high, shift, 0)


def read_values(profile: Profile, messages: NDArray[np.int64], steps: NDArray[np.int64]) -> None:
    """The values, in grid steps, of the messages of a chunk's coefficients."""
    if profile.lanes == 1:
        steps[:] = messages
    else:
        compiled(_lanes)(messages, steps[: messages.size], steps[messages.size :], profile.unit)


def _halves(steps: Any, low: Any, high: Any) -> None:
    for i in range(steps.size):
        x = np.int64(steps[i])
        low[i] = np.uint32((x & np.int64((1 << DIGIT_BITS) - 1)) << np.int64(SCALE_BITS))
        high[i] = np.uint32((x >> np.int64(DIGIT_BITS)) + np.int64(_HALF))


def _digits(steps: Any, out: Any, shift: Any, scale: Any) -> None:
    """Steps divided by 2^shift and rounded, halves to even; then made unsigned and multiplied by 2^scale."""
    half = (np.int64(1) << np.int64(shift - 1)) - np.int64(1)
    for i in range(steps.size):
        x = np.int64(steps[i])
        x = (x + half + ((x >> np.int64(shift)) & np.int64(1))) >> np.int64(shift)
        out[i] = np.uint32((x + np.int64(_HALF)) << np.int64(scale))


def _lanes(messages: Any, first: Any, second: Any, unit: Any) -> None:
    """The lower digit of a message is its centred remainder modulo 2^20."""
    for i in range(messages.size):
        low = ((messages[i] + np.int64(_HALF)) & np.int64((1 << DIGIT_BITS) - 1)) - np.int64(_HALF)
        first[i] = low * unit
        if i < second.size:
            second[i] = ((messages[i] - low) >> np.int64(DIGIT_BITS)) * unit
