"""What of torch_geometric has sizes that only values tell, and no form of fixed sizes: it says so, and what to use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch_geometric.nn
import torch_geometric.nn.models
import torch_geometric.utils
from torch_geometric.nn.pool.consecutive import consecutive_cluster
from torch_geometric.nn.pool.select import SelectTopK

from torchipu.poptorch.poptorch_core import Error, createPoptorchError

Replacement = Callable[..., Any]
"""Takes the original and its arguments."""
POOLING = (
    "how many nodes and edges it leaves is not known before the program runs. Weigh nodes by their scores instead and "
    "keep them all, or pool whole graphs, with global_add_pool and its relatives"
)
TRIPLETS = (
    "how many pairs of edges meet in a node is not known before the program runs. Use SchNet, or list them where the "
    "data is made"
)


def methods() -> list[tuple[Any, str, Replacement]]:
    """Return what takes the place of methods of torch_geometric: by class and name."""
    nn, models = torch_geometric.nn, torch_geometric.nn.models
    pooling = (
        SelectTopK, nn.ASAPooling, nn.EdgePooling, nn.ClusterPooling, nn.PANPooling, nn.GraphUNet,
    )
    reasons = dict.fromkeys(pooling, POOLING)
    reasons |= dict.fromkeys((models.DimeNet, models.DimeNetPlusPlus, models.GNNFF), TRIPLETS)
    reasons[models.ViSNet] = (
        "it picks the edges that are no self-loops, and how many there are is not known before the program runs. Use "
        "SchNet"
    )
    reasons[nn.WLConv] = (
        "it counts colours in a dictionary of Python. Use WLConvContinuous, or colour nodes where the data is made"
    )
    return [(owner, "forward", _refuse_method(owner.__name__, reason)) for owner, reason in reasons.items()]


def functions() -> dict[Callable[..., Any], Replacement]:
    """Return what takes the place of functions of torch_geometric, wherever they are known."""
    nn, utils = torch_geometric.nn, torch_geometric.utils
    return dict.fromkeys((nn.max_pool, nn.avg_pool, consecutive_cluster), _refuse(
        "torch_geometric.nn.max_pool and avg_pool",
        "how many clusters, and edges between them, there are is not known before the program runs. Number clusters "
        "within each graph and give size= to max_pool_x or avg_pool_x, or cluster where the data is made",
    )) | {
        torch_geometric.nn.functional.bro: _refuse(
            "torch_geometric.nn.functional.bro",
            "how many nodes a graph has is not known before the program runs. Use to_dense_batch with max_num_nodes=",
        ),
        utils.to_undirected: _refuse_merged("to_undirected", "ToUndirected()"),
        utils.coalesce: _refuse_merged("coalesce", "RemoveDuplicatedEdges()"),
    }


def _refuse(name: str, reason: str) -> Replacement:
    """Return a function that says what to use where the original reads what is not known: constants are."""
    def refused(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            return original(*args, **kwargs)
        except Error as error:
            raise createPoptorchError(f"{name}: {reason}") from error

    return refused


def _refuse_method(name: str, reason: str) -> Replacement:
    def refused(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
        raise createPoptorchError(f"{name}: {reason}")

    return refused


def _refuse_merged(name: str, transform: str) -> Replacement:
    return _refuse(
        f"torch_geometric.utils.{name}",
        "how many edges are left when those of the same nodes are merged is not known before the program runs. Apply "
        f"torch_geometric.transforms.{transform} to the data",
    )
