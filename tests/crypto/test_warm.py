"""Warming up compiles or loads everything that a round needs; in a process of its own, since loops stay compiled."""

import subprocess
import sys

CHECK = """
import numpy as np
from paraaegis.compiled import compiled
from paraaegis.crypto import residues, ring, rlwe, rlwe_profiles

loops = [compiled(loop) for loop in (residues._unpack, residues._pack, residues._add_errors, residues._lift)]
loops += [compiled(residues._merge, residues._unpack, residues._add)]
loops += [compiled(residues._encode, residues._mask, residues._pack)]
loops += [compiled(loop) for loop in (ring._draw, ring._forward)]
loops += [compiled(ring._multiply, ring._products, ring._columns)]
loops += [compiled(loop) for loop in (rlwe_profiles._halves, rlwe_profiles._digits, rlwe_profiles._lanes)]

rlwe.warm()
warm = {loop.__name__: len(loop.signatures) for loop in loops}
assert all(warm.values()), warm
for profile in rlwe.PROFILES.values():
    for kind in (np.int32, np.int64):
        steps, seed, mask = np.zeros(profile.chunk + 5, kind), bytes(32), rlwe.new_mask(bytes(32))
        total = rlwe.RlweSum(profile, steps.size)
        total.add(rlwe.encrypt(profile, steps, 2, rlwe.precompute(mask, profile, steps.size)))
        rlwe.decrypt(profile, total.close(), steps.size, mask.secret, seed, 1)
assert {loop.__name__: len(loop.signatures) for loop in loops} == warm
"""


def test_after_warming_up_a_round_compiles_nothing():
    done = subprocess.run([sys.executable, "-c", CHECK], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
