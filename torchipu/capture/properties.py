"""Results that a model reads as properties of its inputs and weights: ``return self.weight.mT``."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torch._dynamo.variables.tensor import TensorVariable

from torchipu.capture.process_wide import replaced


@contextlib.contextmanager
def properties_as_calls() -> Iterator[None]:
    """Let Dynamo hand back what its graph computes for a property of a tensor, as it does for a method.

    Dynamo notes where such a value can be had beside the graph, and a forward that returns it reads it there once more:
    from the model itself, whose parameters have no part in the graph.
    """
    var_getattr = TensorVariable.var_getattr

    def without_source(self: TensorVariable, tx: Any, name: str) -> Any:
        value = var_getattr(self, tx, name)
        if isinstance(value, TensorVariable) and value.as_proxy().node.op != "placeholder":
            value.source = None
        return value

    with replaced(TensorVariable, "var_getattr", without_source):
        yield
