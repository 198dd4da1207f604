"""Collectives over processes, as torch.distributed's functional operators: what each moves, and what it gives back.

ATen and the process group give the values. A collective is never dropped, repeated or moved past another, whether
its result is read or not: the other processes wait for it.
"""

from __future__ import annotations

from collections.abc import Mapping

from torchipu.ir.graph import Op

NAMESPACE = "_c10d_functional"
WAIT = f"{NAMESPACE}.wait_tensor.default"
PROCESSES = "processes"
"""Attribute of a collective: how many processes its group has."""

ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER = "all_reduce", "reduce_scatter", "all_gather"
BROADCAST, ALL_TO_ALL, POINT_TO_POINT = "broadcast", "all_to_all", "point_to_point"

PATTERNS: Mapping[str, str] = {
    f"{NAMESPACE}.{name}.default": pattern for name, pattern in (
        ("all_reduce", ALL_REDUCE), ("all_reduce_coalesced", ALL_REDUCE),
        ("reduce_scatter_tensor", REDUCE_SCATTER), ("reduce_scatter_tensor_coalesced", REDUCE_SCATTER),
        ("all_gather_into_tensor", ALL_GATHER), ("all_gather_into_tensor_coalesced", ALL_GATHER),
        ("broadcast", BROADCAST), ("all_to_all_single", ALL_TO_ALL),
        ("isend", POINT_TO_POINT), ("irecv", POINT_TO_POINT), ("batch_p2p_ops", POINT_TO_POINT),
    )
} | {"_dtensor.shard_dim_alltoall.default": ALL_TO_ALL}
"""How bytes travel, by operator."""


def is_collective(op: Op) -> bool:
    """Whether an op moves values between processes."""
    return op.target in PATTERNS
