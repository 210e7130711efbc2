"""The server's peak memory under full CKKS at ResNet-18 size, for several numbers of clients.

    python benchmarks/server_memory.py [--length 11191242] [--clients 5 20]

One upload is encrypted and kept on disk; for each number of clients a new server process reads it that many times, as
it would read spooled uploads, and adds it chunk by chunk. Prints one JSON line per number of clients: peak MB of the
server and of its keyless workers, and seconds.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from paraaegis.crypto.ckks import CipherSum, Secret, new_key
from paraaegis.crypto.pool import Pool, SecretPool
from paraaegis.crypto.profiles import PROFILES
from paraaegis.engines.spool import spooled
from paraaegis.types import Blob

PROFILE = PROFILES["precise"]


def make(path: Path, length: int) -> None:
    """Encrypt one client's update and save its chunks and their sizes."""
    steps = np.random.default_rng(0).integers(-(2**16), 2**16, length)
    with SecretPool() as pool:
        chunks = Secret(PROFILE, new_key(PROFILE), pool).encrypt(steps, 20)
    path.with_suffix(".sizes").write_text(json.dumps([len(chunk) for chunk in chunks]))
    with path.open("wb") as file:
        file.writelines(chunk.view for chunk in chunks)


def serve(path: Path, length: int, clients: int) -> None:
    """Add the upload `clients` times and print the peak memory."""
    sizes = json.loads(path.with_suffix(".sizes").read_text())
    start = time.perf_counter()
    with Pool() as pool:
        total = CipherSum(PROFILE, length, pool)
        for _ in range(clients):
            with path.open("rb") as file:
                total.add([Blob(frame) for frame in spooled(tuple(file.read(size) for size in sizes))])
        down = sum(map(len, total.close()))
    peaks = [resource.getrusage(who).ru_maxrss / 1000 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    workers = Pool().workers
    report = {"clients": clients, "server_mb": peaks[0], "worker_mb": peaks[1], "workers": workers}
    print(json.dumps({**report, "seconds": time.perf_counter() - start, "down_mb": down / 1e6}))


def main() -> None:
    """Make the upload here, then measure in new processes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=11_191_242)
    parser.add_argument("--clients", type=int, nargs="+", default=[5, 20])
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve, options.length, options.clients[0])
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "upload"
        make(path, options.length)
        for clients in options.clients:
            command = [sys.executable, __file__, "--serve", path, "--length", str(options.length)]
            subprocess.run([*command, "--clients", str(clients)], check=True)  # noqa: S603 — this file


if __name__ == "__main__":
    main()
