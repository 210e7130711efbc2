"""How training samples are split among the clients of an experiment."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from paraaegis.errors import ConfigError, DataError
from paraaegis.plural import plural

SPLITS = ("iid", "dirichlet")


def split(
    labels: NDArray[np.int64], clients: int, how: str, alpha: float, minimum: int, rng: np.random.Generator
) -> list[NDArray[np.int64]]:
    """Assign every sample to one client, at least `minimum` to each; return each client's indices, sorted.

    `iid` gives random equal shares. `dirichlet` draws, for each class, the clients' proportions from
    Dirichlet(alpha): the smaller alpha is, the fewer classes a client sees. `alpha` is used only there.
    """
    if how not in SPLITS:
        raise ConfigError(f"data.split must be one of {', '.join(SPLITS)}, got {how!r}")
    if clients < 1:
        raise ConfigError(f"federation.clients must be at least 1, got {clients}")
    if clients * minimum > labels.size:
        raise DataError(
            f"{plural(clients, 'client')} with at least {plural(minimum, 'sample')} each need {clients * minimum}, "
            f"but the training set has {labels.size}; lower federation.clients or federation.min_samples"
        )
    shares = _equal(labels, clients, rng) if how == "iid" else _dirichlet(labels, clients, alpha, rng)
    return [np.sort(share) for share in _top_up(shares, minimum)]


def _equal(labels: NDArray[np.int64], clients: int, rng: np.random.Generator) -> list[NDArray[np.int64]]:
    return np.array_split(rng.permutation(labels.size), clients)


def _dirichlet(
    labels: NDArray[np.int64], clients: int, alpha: float, rng: np.random.Generator
) -> list[NDArray[np.int64]]:
    if not 0 < alpha < np.inf:
        raise ConfigError(f"data.alpha must be a positive number, got {alpha}")
    owner = np.empty(labels.size, dtype=np.int64)
    for label in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == label))
        cuts = np.cumsum(rng.dirichlet(np.full(clients, alpha)))[:-1] * members.size
        for client, part in enumerate(np.split(members, cuts.astype(np.int64))):
            owner[part] = client
    # In random order, so that samples moved to a small share come from all classes.
    order = rng.permutation(labels.size)
    return [order[owner[order] == client] for client in range(clients)]


def _top_up(shares: list[NDArray[np.int64]], minimum: int) -> list[NDArray[np.int64]]:
    """Move samples one at a time from the largest share to shares that are still too small."""
    sizes = np.array([share.size for share in shares])
    if sizes.min() >= minimum:
        return shares
    lists = [share.tolist() for share in shares]
    for client in range(len(lists)):
        while sizes[client] < minimum:
            largest = int(sizes.argmax())
            lists[client].append(lists[largest].pop())
            sizes[client] += 1
            sizes[largest] -= 1
    return [np.array(share, dtype=np.int64) for share in lists]
