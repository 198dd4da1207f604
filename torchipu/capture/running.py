"""Capture by running: forward runs as plain Python on fake tensors and what it calls is recorded, without Dynamo.

So captures PopTorch: anything that Python can do before, between and after the calls is allowed, errors of the model
reach the caller as they are, and blocks may be begun by assignment. The price is that forward runs more than once.
"""

from __future__ import annotations

import contextlib
import linecache
import sys
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any

import torch
from torch._dynamo.eval_frame import OptimizedModule
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.fx import traceback
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from torchipu.capture.adaptive_softmax import clusters_masked
from torchipu.capture.aot import Place, export
from torchipu.capture.capture_errors import as_capture_error
from torchipu.capture.captured import Captured
from torchipu.capture.checkpoint import checkpoints_marked
from torchipu.capture.cross_map import CrossMapLRN2d
from torchipu.capture.cumulative_averages import counted_on_the_device
from torchipu.capture.custom_ops import stand_in
from torchipu.capture.distributions import truncated_at_once, validated_when_run
from torchipu.capture.forward_changes import Rebound
from torchipu.capture.fx_source import OUR_ROOT, TORCH_ROOT
from torchipu.capture.process_wide import capturing, replaced, watching_modules
from torchipu.capture.saved_values import WRITTEN_AFTER_READ, saved_as_read, without_account
from torchipu.capture.unbranched_distributions import unbranched
from torchipu.ir.types import UNKNOWN_SOURCE

NO_GRADIENT = "does not require grad and does not have a grad_fn"
"""Torch's words for a gradient of what was computed without any: inference is, unless forward shows that it asks."""


class ExplainedError(Exception):
    """A refusal of torch's that the layer above has worded: it reaches the caller as it is."""


class Running(torch.nn.Module):
    """Calls a module on flat tensors and returns flat tensors; subclasses say how.

    Args:
        inner: The module, called by `run`.
        loss_scale: What the backward ops begin from; 0 for inference.

    Attributes:
        names_modules: Whether ops carry the path of the module that they run in.
        differentiates: Whether forward takes gradients of itself in inference, such as forces.
        saves_values: Whether forward writes tensors whose values the backward needs.
    """

    keeps_writes = True
    allows_writes_after_reads = False  # True: gradients of a tensor that is written later are those of what was read

    def __init__(self, inner: torch.nn.Module, loss_scale: float = 0.0) -> None:
        super().__init__()
        self.inner = inner
        self.loss_scale = loss_scale
        self.names_modules = True
        self.differentiates = False
        self.saves_values = False
        self.loss: int | None = None
        self.leaves: list[Any] = []
        self.spec: pytree.TreeSpec | None = None
        self._repeats = _repeats(inner)

    def named_parameters(self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True) -> Any:
        """Name every parameter once, though AOT autograd asks for all names: two inputs would be two weights."""
        return super().named_parameters(prefix, recurse)

    def named_buffers(self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True) -> Any:
        """Name every buffer once."""
        return super().named_buffers(prefix, recurse)

    def run(self, tensors: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], int | None]:
        """Call ``inner``; return its tensors and which of them is the loss, or None."""
        raise NotImplementedError

    def forward(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        """Return the tensors of a run; only the loss carries a gradient."""
        paths = _module_paths(self.inner) if self.names_modules else contextlib.nullcontext()
        with (
            _tied(self._repeats), _rebound(self.inner), traceback.preserve_node_meta(), paths, _seen_as_tracing(),
            _lists_of_items(), _not_compiled(), counted_on_the_device(), _without_loops(), checkpoints_marked(),
            truncated_at_once(), validated_when_run(), unbranched(), clusters_masked(), _UserLines(),
            saved_as_read() if self.saves_values else contextlib.nullcontext(),
            torch.set_grad_enabled(torch.is_grad_enabled() or self.differentiates),
        ):
            buffers = _buffers_of(self.inner)
            results, self.loss = self.run(tensors)
            rebound = _bound_again(buffers)
        if self.loss is not None and not results[self.loss].requires_grad:
            self.loss = None
        self.leaves = [Place(index) for index in range(len(results))]
        self.spec = pytree.tree_structure(self.leaves)
        # A clone keeps AOT autograd from treating results as views of inputs or of each other.
        returned = [
            result if index == self.loss else result.detach().clone() for index, result in enumerate(results)
        ]
        with torch.no_grad():
            for one, buffer, value in rebound:
                one.write(buffer, value)
        return returned


def _buffers_of(module: torch.nn.Module) -> list[tuple[Rebound, dict[str, Any], torch.Tensor]]:
    """Return each buffer of a module with what holds it."""
    return [
        (Rebound(path, name, UNKNOWN_SOURCE), member._buffers, buffer)
        for path, member in module.named_modules() for name, buffer in member._buffers.items() if buffer is not None
    ]


def _bound_again(
    buffers: Sequence[tuple[Rebound, dict[str, Any], torch.Tensor]],
) -> list[tuple[Rebound, torch.Tensor, Any]]:
    """Bind the names of buffers to what they were bound to; return those that were not, with their values."""
    found = []
    for one, held, buffer in buffers:
        value = held.get(one.name)
        if value is not buffer:
            found.append((one, buffer, value))
            held[one.name] = buffer
    return found


@contextlib.contextmanager
def _rebound(module: torch.nn.Module) -> Iterator[None]:
    """Let ``self.weight += x`` bind what stands for a parameter to the name that it has, as it does the parameter."""
    for member in module.modules():
        for parameter in member._parameters.values():
            if parameter is not None:
                parameter._is_param = True  # what isinstance(tensor, torch.nn.Parameter) looks at
    register = torch.nn.Module.register_parameter

    def bind(member: torch.nn.Module, name: str, parameter: Any) -> None:
        if parameter is None or member._parameters.get(name) is not parameter:
            register(member, name, parameter)

    with replaced(torch.nn.Module, "register_parameter", bind):
        yield


def capture_by_running(
    running: Running, tensors: Sequence[torch.Tensor], *, name: str, strict_ops: bool = False,
) -> Captured:
    """Capture a module as one graph by running it on fake tensors.

    Args:
        running: Calls the module; its ``loss_scale`` says whether backward ops are wanted.
        tensors: Example inputs; sizes and types are fixed in the graph.
        name: Name of the graph.
        strict_ops: Refuse ops that would run through the generic codelet.

    Returns:
        The capture; its structure is that of the flat list of tensors that `Running.run` returned, and writes into
        inputs are among its outputs.

    Raises:
        CaptureError: A size or a value on the host depends on data.
        Exception: Whatever the module raises, as it is.
    """
    is_training = running.loss_scale != 0.0
    # Tensors that are no parameters, buffers or inputs are constants of the program.
    fake_mode = FakeTensorMode(allow_non_fake_inputs=True)
    with (
        capturing(), torch.inference_mode(False), torch.set_grad_enabled(is_training),
        torch.random.fork_rng(devices=[]), tracing(TracingContext(fake_mode)),
    ):
        given = tuple(tensor.detach() for tensor in tensors)
        try:
            with without_account() if running.allows_writes_after_reads else contextlib.nullcontext():
                return export(running, running.inner, given, {}, name=name, strict_ops=strict_ops)
        except ExplainedError:
            raise
        except (DataDependentOutputException, DynamicOutputShapeException) as error:
            raise as_capture_error(error) from error
        except RuntimeError as error:
            if running.allows_writes_after_reads and not running.saves_values and WRITTEN_AFTER_READ in str(error):
                running.saves_values = True
            elif not is_training and not running.differentiates and NO_GRADIENT in str(error):
                running.differentiates = True
            else:
                raise
            return export(running, running.inner, given, {}, name=name, strict_ops=strict_ops)


# ---------------------------------------------------------------------- tied weights
Slot = tuple[dict[str, Any], str]
"""Where a module holds a parameter or a buffer."""


def _repeats(root: torch.nn.Module) -> list[tuple[Slot, Slot]]:
    """Return the second and further places of each parameter and buffer of a module, with the first one."""
    first: dict[int, Slot] = {}
    found = []
    for kind in ("_parameters", "_buffers"):
        for member in root.modules():
            for name, tensor in getattr(member, kind).items():
                if tensor is not None:
                    slot = (getattr(member, kind), name)
                    known = first.setdefault(id(tensor), slot)
                    if known is not slot:
                        found.append((slot, known))
    return found


@contextlib.contextmanager
def _tied(repeats: Sequence[tuple[Slot, Slot]]) -> Iterator[None]:
    """Let all places of a tensor hold what is traced in the first one."""
    before = [(slot, slot[0][slot[1]]) for slot, _ in repeats]
    for (held, name), (first, first_name) in repeats:
        held[name] = first[first_name]
    try:
        yield
    finally:
        for (held, name), tensor in before:
            held[name] = tensor


# ---------------------------------------------------------------------- what others see
@contextlib.contextmanager
def _seen_as_tracing() -> Iterator[None]:
    """Let `torch.jit.is_tracing` say so to libraries of models, which ask it before they look at values.

    torch itself would take the true answer for a graph of TorchScript.
    """
    real = torch.jit.is_tracing  # type: ignore[attr-defined]

    def is_tracing() -> bool:
        asking = sys._getframe(2).f_globals.get("__name__", "")  # behind the frame of `replaced`
        return bool(real()) or not (asking == "torch" or asking.startswith("torch."))

    with replaced(torch.jit, "is_tracing", is_tracing):
        yield


@contextlib.contextmanager
def _lists_of_items() -> Iterator[None]:
    """Let `Tensor.tolist` ask for the items of the tensor that it is called on, where their values may be known."""
    def tolist(tensor: torch.Tensor) -> Any:
        return tensor.item() if tensor.dim() == 0 else [tolist(one) for one in tensor]

    with replaced(FunctionalTensor, "tolist", tolist):
        yield


@contextlib.contextmanager
def _not_compiled() -> Iterator[None]:
    """Let a module that `torch.compile` has wrapped run as it was written: its own program cannot stand in another."""
    def call(module: Any, *args: Any, **kwargs: Any) -> Any:
        return module._orig_mod(*args, **kwargs)

    with replaced(OptimizedModule, "__call__", call):
        yield


@contextlib.contextmanager
def _without_loops() -> Iterator[None]:
    """Take apart a layer that torch writes as a loop over memory of its own."""
    loop = torch.nn.modules.normalization._cross_map_lrn2d  # type: ignore[attr-defined]
    with replaced(loop, "apply", CrossMapLRN2d.apply):
        yield


# ---------------------------------------------------------------------- where the user wrote it
class _UserLines(TorchFunctionMode):
    """Notes for each call into torch the line outside torch that it comes from, and calls what stands in for it."""

    def __torch_function__(
        self, function: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        line = user_line(sys._getframe(1))
        if line:
            traceback.current_meta["stack_trace"] = line
        return stand_in(function, args, line)(*args, **(kwargs or {}))


def user_line(frame: FrameType | None) -> str:
    """Return the innermost frame of forward outside torch and torchipu as one entry of a stack trace."""
    frame = user_frame(frame)
    if frame is None:
        return ""
    file = frame.f_code.co_filename
    code = linecache.getline(file, frame.f_lineno).strip()
    return f'  File "{file}", line {frame.f_lineno}, in {frame.f_code.co_name}\n    {code}\n'


def user_frame(frame: FrameType | None) -> FrameType | None:
    """Return the innermost frame of forward outside torch and torchipu, or None."""
    while frame is not None and frame.f_code is not Running.forward.__code__:
        if not frame.f_code.co_filename.startswith((TORCH_ROOT, OUR_ROOT, "<")):
            return frame
        frame = frame.f_back
    return None


@contextlib.contextmanager
def _module_paths(root: torch.nn.Module) -> Iterator[None]:
    """Note for each call into torch the modules that it is made in."""
    paths = {id(member): path for path, member in root.named_modules(remove_duplicate=True)}
    stacks: list[dict[str, tuple[str, type]]] = [{}]

    def enter(module: torch.nn.Module) -> None:
        path = paths.get(id(module))
        if path is None:
            return
        stacks.append({**stacks[-1], path: (path, type(module))})
        traceback.current_meta["nn_module_stack"] = stacks[-1]

    def leave(module: torch.nn.Module) -> None:
        if id(module) in paths and len(stacks) > 1:
            stacks.pop()
            traceback.current_meta["nn_module_stack"] = stacks[-1]

    with watching_modules(enter, leave):
        yield
