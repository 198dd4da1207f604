"""Models of transformers that record what their layers give (``output_hidden_states=True``), from the first trace on.

Their first call puts hooks on the layers, under a lock, and Dynamo knows neither: it would break the graph there, and
in all around it. The hooks stay, and do nothing unless outputs are asked for: they are put there while it traces.
"""

from __future__ import annotations

import sys
from typing import Any

from torch import nn
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.functions import UserFunctionVariable

_LIBRARY, _NAME = "transformers.utils.output_capturing", "maybe_install_capturing_hooks"


def register() -> None:
    """Let Dynamo call what puts the hooks on a model instead of tracing it."""
    plain = UserFunctionVariable.call_function
    if plain.__module__ == __name__:
        return

    def call_function(self: UserFunctionVariable, tx: Any, args: Any, kwargs: Any) -> VariableTracker:
        if getattr(self.fn, "__name__", None) == _NAME and self.fn is getattr(sys.modules.get(_LIBRARY), _NAME, None):
            model = getattr(next(iter((*args, *kwargs.values())), None), "value", None)
            if isinstance(model, nn.Module):
                self.fn(model)
                return VariableTracker.build(tx, None)
        return plain(self, tx, args, kwargs)

    UserFunctionVariable.call_function = call_function  # type: ignore[method-assign]
