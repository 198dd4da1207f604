"""Shares of replicas: each holds one of as many neighbouring runs of a tensor's elements as there are replicas.

What a replica has not is NaN in the whole tensor, until an all-gather brings it.
"""

from __future__ import annotations

import numpy as np

Values = np.ndarray
"""``[replicas, ...]``."""


def split(whole: np.ndarray, replicas: int) -> Values:
    """Return ``[replicas, share]``: the share of each replica, the last one filled up with zeros."""
    size = -(-whole.size // replicas)
    padded = np.zeros(size * replicas, whole.dtype)
    padded[: whole.size] = whole.reshape(-1)
    return padded.reshape(replicas, size)


def own_of_each(wholes: Values) -> Values:
    """Return ``[replicas, share]``: of each replica's whole tensor its own share."""
    count = len(wholes)
    return np.stack([split(whole, count)[replica] for replica, whole in enumerate(wholes)])


def among_nan(shares: Values, shape: tuple[int, ...]) -> Values:
    """Return whole tensors ``[replicas, *shape]`` in which each replica has its share and NaN elsewhere."""
    replicas, size = shares.shape
    wholes = np.full((replicas, replicas * size), np.nan)
    for replica, share in enumerate(shares):
        wholes[replica, replica * size : (replica + 1) * size] = share
    return wholes[:, : int(np.prod(shape))].reshape(replicas, *shape)


def gathered(wholes: Values) -> Values:
    """Return whole tensors with the share that each replica has of its own."""
    flat = own_of_each(wholes).reshape(-1)[: wholes[0].size]
    return np.broadcast_to(flat.reshape(wholes.shape[1:]), wholes.shape).copy()
