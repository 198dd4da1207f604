"""What each process gives to be reduced in ``test_metrics``."""

from __future__ import annotations

from typing import Any

import torch

from torchipu.distributed.metrics import reduce_metrics
from torchipu.errors import PeerMismatchError


def reduce(rank: int, size: int, argument: str) -> dict[str, Any]:
    given = {"loss": torch.tensor(1.0 + rank), "hits": 10.0 * rank}
    found: dict[str, Any] = {name: reduce_metrics(given, name) for name in ("mean", "sum", "min", "max")}
    found["weighted"] = reduce_metrics(given, weight=1 + 2 * rank)
    found["alone"] = reduce_metrics(given, process_group="alone")
    try:
        reduce_metrics({"loss": 1.0} if rank else {"accuracy": 1.0})
    except PeerMismatchError as error:
        found["error"] = str(error)
    found["after"] = reduce_metrics(given)
    return found
