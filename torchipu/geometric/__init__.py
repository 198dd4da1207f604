"""PopTorch Geometric on torchipu: ``import poptorch_geometric`` gives this module.

Batches of graphs of one size, so that one program serves them all, and the functions of PyTorch Geometric whose sizes
depend on values in a form that has none. Importing it lets objects of ``torch_geometric.data`` be arguments and results
of models, and puts `torchipu.geometric.overrides` in place; both act within captured models only.
"""

from __future__ import annotations

try:
    import torch_geometric as _torch_geometric  # noqa: F401
except ImportError as error:
    raise ImportError(
        'poptorch_geometric needs PyTorch Geometric: pip install "torchipu[geometric]"', name="torch_geometric"
    ) from error

from torchipu.geometric.cluster_loader import FixedSizeClusterLoader
from torchipu.geometric.collate import (
    CombinedBatchingCollater,
    FixedSizeCollater,
    TupleCollater,
    make_exclude_keys,
)
from torchipu.geometric.dataloader import CustomFixedSizeDataLoader, DataLoader, FixedSizeDataLoader
from torchipu.geometric.fixed_size_options import FixedSizeOptions
from torchipu.geometric.masks import PreLayerMasker
from torchipu.geometric.neighbor_loader import FixedSizeNeighborLoader
from torchipu.geometric.overrides import override, set_aggregation_dim_size
from torchipu.geometric.stepper import TrainingStepper
from torchipu.geometric.strategies import FixedSizeStrategy, OverSizeStrategy
from torchipu.geometric.stream_packing_sampler import FixedBatchSampler, StreamPackingSampler
from torchipu.geometric.types import PyGArgsParser, registerCustomArgParsers

__all__ = [
    "CombinedBatchingCollater",
    "CustomFixedSizeDataLoader",
    "DataLoader",
    "FixedBatchSampler",
    "FixedSizeClusterLoader",
    "FixedSizeCollater",
    "FixedSizeDataLoader",
    "FixedSizeNeighborLoader",
    "FixedSizeOptions",
    "FixedSizeStrategy",
    "OverSizeStrategy",
    "PreLayerMasker",
    "PyGArgsParser",
    "StreamPackingSampler",
    "TrainingStepper",
    "TupleCollater",
    "make_exclude_keys",
    "registerCustomArgParsers",
    "set_aggregation_dim_size",
]

registerCustomArgParsers()
override()
