"""Modules as one graph of torch's own calls, through Dynamo; what releases of torch do differently is made alike."""

from __future__ import annotations

import contextlib
import copy
import logging
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch._dynamo import functional_export
from torch._dynamo.convert_frame import CaptureOutput, get_traced_fn
from torch._dynamo.functional_export import dynamo_graph_capture_for_export
from torch.fx import GraphModule, Node
from torch.fx.graph import _ExportCodeGen
from torch.utils import _pytree as pytree

from torchipu.capture import recurrent_layers
from torchipu.capture.block import BlockForward
from torchipu.capture.capture_errors import without_torchs_log
from torchipu.capture.custom_ops import replace_calls
from torchipu.capture.distributions import unvalidated
from torchipu.capture.forward_changes import Changes, Rebound, buffers_returned
from torchipu.capture.inner_gradients import inner_gradients
from torchipu.capture.process_wide import replaced
from torchipu.capture.properties import properties_as_calls
from torchipu.errors import CaptureError


def traced_by_dynamo(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any],
) -> tuple[GraphModule, Sequence[Rebound]]:
    """Return the module as one torch-level FX graph, with parameters and buffers under their names.

    Where forward gives buffers other tensors, the graph returns these beside its results, and they are named.
    """
    settings = torch._dynamo.config.patch(
        automatic_dynamic_shapes=False, assume_static_by_default=True, specialize_int=True, specialize_float=True,
        suppress_errors=False, **_logging_functions(),
    )
    if isinstance(module, GraphModule):  # a graph already, which Dynamo would call and not look into
        return replace_calls(GraphModule(module, copy.deepcopy(module.graph))), ()
    # Where Inductor freezes weights, Dynamo gives them names of its own in every graph.
    freezes_not = torch._inductor.config.patch(freezing=False)
    with (
        settings, freezes_not, inner_gradients(), properties_as_calls(), unvalidated(), _method_forward(module),
        without_torchs_log(), _settings_untold(), recurrent_layers.whole(),
    ):
        changes = Changes(module)
        captured = _graph_of(module, args, kwargs, changes)
        rebound = changes.rebound
        if rebound:
            with buffers_returned(module, rebound):
                captured = _graph_of(module, args, kwargs, changes)
    changes.tell()
    return replace_calls(captured), rebound


def _graph_of(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], changes: Changes,
) -> GraphModule:
    with changes.noted(), _defaults_by_name(module), _arguments_or_none():
        try:
            captured: GraphModule = dynamo_graph_capture_for_export(module)(*args, **kwargs)
        except SyntaxError as error:
            if "_dynamo_bytecode_unflatten((,)" not in (error.text or ""):
                raise
            raise _no_result(module) from None  # what torch writes of a forward without results is no Python
        except AssertionError as error:
            if "backend_input must not be None" not in str(error):
                raise
            raise _no_result(module) from None  # it has made no graph of what is returned
    if not _has_results(captured):
        raise _no_result(module)
    return captured


def _has_results(captured: GraphModule) -> bool:
    """Whether forward returns a tensor: torch 2.10 has a graph of what it returns, and 2.13 raises."""
    returned: GraphModule | None = getattr(captured, "_out_shuffle_graph", None)
    if returned is None:
        return True
    (output,) = returned.graph.find_nodes(op="output")
    return any(isinstance(leaf, Node) for leaf in pytree.tree_leaves(output.args))


def _no_result(module: torch.nn.Module) -> CaptureError:
    return CaptureError(
        f"forward of {type(module).__name__} returns no tensor that it has computed",
        remedy="return what is to be handed back: the loss, a result, or the buffer that forward writes into",
    )


class _Written(_ExportCodeGen):
    """Writes a graph of Dynamo's as Python, also one that takes nothing: torch 2.10 writes ``(self, ,)``."""

    def gen_var_bindings(self, *args: Any, **kwargs: Any) -> str:
        return str(super().gen_var_bindings(*args, **kwargs)).replace("((self, ,))", "((self,))")


@contextlib.contextmanager
def _arguments_or_none() -> Iterator[None]:
    """Let forward take nothing."""
    if not hasattr(functional_export, _ExportCodeGen.__name__):  # releases that write it so
        yield
        return
    with replaced(functional_export, _ExportCodeGen.__name__, _Written):
        yield


@contextlib.contextmanager
def _defaults_by_name(module: torch.nn.Module) -> Iterator[None]:
    """Let what Dynamo makes of forward know the defaults of arguments that are given by name only.

    Torch 2.10 leaves them out, and refuses a call that does.
    """
    made: Callable[..., Any] = CaptureOutput.forward_callable
    defaults = get_traced_fn(module)[0].__kwdefaults__

    def with_defaults(*args: Any, **kwargs: Any) -> Any:
        function = made(*args, **kwargs)
        function.__kwdefaults__ = function.__kwdefaults__ or defaults
        return function

    with replaced(CaptureOutput, "forward_callable", with_defaults):
        yield


def _logging_functions() -> dict[str, Any]:
    """Return Dynamo's setting that leaves out what loggers write: what a model says as it runs is no part of the graph.

    Libraries add methods such as ``warning_once``, after their first call of no effect. Releases of torch before 2.12
    have the setting under its older name.
    """
    config = torch._dynamo.config
    name = next(name for name in ("ignore_logging_functions", "ignore_logger_methods") if hasattr(config, name))
    writing = {method for name, method in vars(logging.Logger).items() if name in _WRITING or name.endswith("_once")}
    return {name: getattr(config, name) | writing}


@contextlib.contextmanager
def _settings_untold() -> Iterator[None]:
    """Keep torch from writing its settings as text into its account of a capture.

    Torch 2.11 would sort those that are sets, and log that functions, as in the setting above, cannot be sorted.
    """
    with replaced(torch._dynamo.utils, "_get_dynamo_config_for_logging", lambda: None):
        yield


_WRITING = ("debug", "info", "warning", "warn", "error", "exception", "critical", "fatal", "log")


@contextlib.contextmanager
def _method_forward(module: torch.nn.Module) -> Iterator[None]:
    """Let a block begin at the outermost module too: there Dynamo takes nothing but a method for the forward."""
    begun = module.__dict__.get("forward")
    if not isinstance(begun, BlockForward):
        yield
        return

    def forward(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        return begun(*args, **kwargs)

    object.__setattr__(module, "forward", types.MethodType(forward, module))
    try:
        yield
    finally:
        object.__setattr__(module, "forward", begun)


def let_go(traced: GraphModule) -> None:
    """Take the model out of what Dynamo captured, which torch keeps for good: its weights would stay in memory.

    Args:
        traced: Of `traced_by_dynamo`; it cannot be run any more.
    """
    for part in ("dynamo_bytecode_flatten", "dynamo_bytecode_unflatten"):
        code = getattr(traced.graph._codegen, part, None)  # of releases that write it so
        if code is not None:
            code.out = None
    traced._modules, traced._parameters, traced._buffers = {}, {}, {}
