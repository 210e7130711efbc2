"""Other projects' CKKS settings, which `paraaegis bench he` measures next to ours, one setting per process.

authors   the ParaAegis authors' public code: TenSEAL's ckks_vector, N = 32768, [60, 40, 40, 60], public key
nvflare   NVFlare's HE filters: ckks_vector, N = 8192, [60, 40, 40], public key
"""

import tenseal as ts

SETTINGS = {"authors": (32768, [60, 40, 40, 60]), "nvflare": (8192, [60, 40, 40])}


class Peer:
    """One setting, with the four operations that the benchmark times."""

    def __init__(self, name: str) -> None:
        degree, bits = SETTINGS[name]
        self.context = ts.context(ts.SCHEME_TYPE.CKKS, degree, coeff_mod_bit_sizes=bits)
        self.context.global_scale = 2**40
        self.slots = degree // 2

    def encrypt(self, values):
        """Encrypt and serialise one ciphertext at a time: one long vector would only add warnings."""
        parts = [values[start : start + self.slots] for start in range(0, values.size, self.slots)]
        return [ts.ckks_vector(self.context, part.tolist()).serialize() for part in parts]

    def load(self, chunks):
        """Read one client's ciphertexts."""
        return [ts.ckks_vector_from(self.context, chunk) for chunk in chunks]

    def add(self, total, chunks):
        """Read one client's ciphertexts and add them."""
        return [left + right for left, right in zip(total, self.load(chunks), strict=True)]

    def close(self, total):
        """Serialise the sum."""
        return [part.serialize() for part in total]

    def decrypt(self, chunks):
        """Read and decrypt a sum."""
        return [value for part in self.load(chunks) for value in part.decrypt()]
