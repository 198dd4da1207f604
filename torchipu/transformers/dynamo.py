"""Makes the backend ``ipu`` one of those that accelerate, and so the Trainer of transformers, knows.

accelerate turns the name of a backend into a member of an enumeration, which third parties cannot add to.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

BACKEND = "IPU"


def add_backend(dataclasses: ModuleType) -> None:
    """Add the member ``IPU`` to ``DynamoBackend``.

    Args:
        dataclasses: ``accelerate.utils.dataclasses``.
    """
    backends = dataclasses.DynamoBackend
    if BACKEND in backends.__members__:
        return
    member = str.__new__(backends, BACKEND)
    member._name_ = member._value_ = BACKEND
    member._sort_order_ = len(backends._member_names_)
    member.__objclass__ = backends
    type.__setattr__(backends, BACKEND, member)
    backends._member_map_[BACKEND] = backends._value2member_map_[BACKEND] = member
    backends._member_names_.append(BACKEND)


def offer_backend(config_utils: ModuleType) -> None:
    """Let ``accelerate launch --dynamo_backend ipu`` and the questions of ``accelerate config`` know the backend.

    Args:
        config_utils: ``accelerate.commands.config.config_utils``.
    """
    if BACKEND not in config_utils.DYNAMO_BACKENDS:
        config_utils.DYNAMO_BACKENDS.append(BACKEND)


def compile_in_place(launchers: ModuleType) -> None:
    """Let ``Accelerator.prepare_model`` compile a model in place where the backend is ours.

    accelerate returns ``torch.compile(model)`` otherwise, a second object: whoever goes on with the first one runs
    without a word what is not compiled, as the Trainer does in ``evaluate`` and ``predict`` after ``train``.

    Args:
        launchers: ``accelerate.launchers``, which is imported next after ``accelerate.accelerator``: the import of
            that one has begun before torch, and so whoever watches for it, is there.
    """
    accelerator = sys.modules[launchers.__name__.replace("launchers", "accelerator")]
    kind = accelerator.Accelerator
    of_accelerate, is_compiled = kind.prepare_model, accelerator.is_compiled_module
    if hasattr(of_accelerate, "__wrapped__"):
        return

    @functools.wraps(of_accelerate)
    def prepare_model(
        self: Any, model: Any, device_placement: bool | None = None, evaluation_mode: bool = False
    ) -> Any:
        plugin = self.state.dynamo_plugin
        # FSDP2 compiles in place by itself; layers alone are compiled in a copy of the model.
        if plugin.backend != BACKEND or plugin.use_regional_compilation or getattr(self, "is_fsdp2", False):
            return of_accelerate(self, model, device_placement, evaluation_mode)
        if model._compiled_call_impl is None and not is_compiled(model):
            _compile(model, plugin.to_kwargs())
        plugin.backend = type(plugin.backend).NO
        try:
            return of_accelerate(self, model, device_placement, evaluation_mode)
        finally:
            plugin.backend = type(plugin.backend)(BACKEND)

    kind.prepare_model = prepare_model


def _compile(model: Any, arguments: Mapping[str, Any]) -> None:
    """Compile a module such that it stays the object that it is."""
    if type(model).forward.__module__.startswith("torch."):
        # Dynamo leaves torch's own modules to eager, unless they are called from a frame that is not torch's.
        import torch
        from torch._dynamo.external_utils import wrap_inline

        model._compiled_call_impl = torch.compile(wrap_inline(model._call_impl), **arguments)
    else:
        model.compile(**arguments)
