"""The op table: one record for each operator, one file for each family."""

import importlib

FAMILIES = (
    "elementwise", "reduce", "view", "random", "matmul", "conv", "pool", "attention", "norm", "softmax", "loss",
    "embedding", "update", "generic",
)
for _family in FAMILIES:
    importlib.import_module(f"torchipu.ops.{_family}")
