"""Capture of whole modules through Dynamo and AOT autograd, for the one-Program door."""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch._functorch._aot_autograd import descriptors as desc
from torch._functorch.aot_autograd import aot_export_joint_with_descriptors
from torch._guards import TracingContext, detect_fake_mode, tracing
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule, Node
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils import _pytree as pytree

from torchipu.capture import printing, substitutes
from torchipu.capture.capture_errors import as_capture_error
from torchipu.capture.captured import Captured
from torchipu.capture.checkpoint import with_regions_of_all_kinds
from torchipu.capture.complex_numbers import with_complex_results, without_complex
from torchipu.capture.decompositions import decompositions
from torchipu.capture.dynamo_export import let_go, traced_by_dynamo
from torchipu.capture.forward_changes import Rebound
from torchipu.capture.fx_import import Given, Imported, import_graph
from torchipu.capture.fx_types import refuse_inputs
from torchipu.capture.inputs import refuse_foreign, refuse_unknown_names
from torchipu.capture.process_wide import capturing
from torchipu.capture.saved_values import constants_saved
from torchipu.capture.tensor_classes import all_plain, detached, results_plain
from torchipu.capture.unregistered import WithConstants, names_of_attributes
from torchipu.capture.whole_ops import whole
from torchipu.capture.written_state import has_loops
from torchipu.errors import CaptureError, IpuError
from torchipu.host.generic import overload
from torchipu.ir.graph import Tensor
from torchipu.ir.types import Role
from torchipu.optable.assertion import TARGETS as ASSERTIONS

substitutes.register()


def capture_joint(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None = None, *, loss: int | None = None,
    loss_scale: float = 1.0, name: str = "training", strict_ops: bool = False,
) -> Captured:
    """Capture forward and backward of a module as one graph.

    Args:
        module: The model; it returns a loss, alone or among other results. It is left as it was.
        args: Example arguments; their sizes and dtypes are fixed in the graph.
        kwargs: Example keyword arguments.
        loss: Which of the flattened results is the loss; None takes the only scalar that needs a gradient.
        loss_scale: What the backward ops begin from: the gradient of the loss by itself.
        name: Name of the graph.
        strict_ops: Refuse ops that would run through the generic codelet.

    Raises:
        CaptureError: The module cannot be captured as one graph (torch's reason is the cause), or its loss cannot be
            told from its other results.
    """
    with capturing(), torch.enable_grad(), _tracing(module):  # a training step differentiates, whoever calls it
        return _capture(module, args, kwargs or {}, _Training(loss, loss_scale), name, strict_ops)


def capture_inference(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None = None, *, name: str = "inference",
    strict_ops: bool = False,
) -> Captured:
    """Capture the forward of a module as one graph; arguments and errors as for `capture_joint`."""
    with capturing(), torch.no_grad(), _tracing(module):
        return _capture(module, args, kwargs or {}, None, name, strict_ops)


@dataclass(frozen=True, slots=True)
class _Training:
    """What a training capture needs to know of the loss."""

    loss: int | None
    scale: float


class _Results(torch.nn.Module):
    """Calls the captured module, keeps the structure of its results and lets only the loss carry a gradient.

    Args:
        inner: What Dynamo captured.
        training: The loss, or None for inference.
        attributes: Names of the model's plain attributes that are tensors, by id.
        rebound: Buffers whose new values ``inner`` returns beside its results.
    """

    def __init__(
        self, inner: GraphModule, training: _Training | None, attributes: Mapping[int, str],
        rebound: Sequence[Rebound],
    ) -> None:
        super().__init__()
        self.inner = inner
        self.attributes = attributes
        self.rebound = rebound
        self.training_of = training
        self.leaves: list[Any] = []
        self.spec: pytree.TreeSpec | None = None
        self.loss: int | None = None
        self.loss_scale = 0.0 if training is None else training.scale
        self.keeps_writes = False

    def forward(self, *args: Any, **kwargs: Any) -> list[torch.Tensor]:
        """Return the tensors among the results, in order; ``loss`` becomes the place of the loss among them."""
        fake_mode = detect_fake_mode()
        if fake_mode is not None:  # of AOT autograd, to which a tensor from outside comes as it is; torch 2.13 does so
            fake_mode.allow_non_fake_inputs = True
        # The interpreter and not a plain call: it hands annotations and source lines on to what is traced below it.
        with torch.fx.traceback.preserve_node_meta(), results_plain():
            running = WithConstants(self.inner, self.attributes)
            returned = running.run(*args, *kwargs.values())
            running.refuse_writes()
        returned, values = returned if self.rebound else (returned, ())
        leaves, self.spec = pytree.tree_flatten(returned)
        chosen = None if self.training_of is None else find_loss(leaves, self.training_of.loss)
        tensors: list[torch.Tensor] = []
        self.leaves = []
        for position, leaf in enumerate(leaves):
            if not isinstance(leaf, torch.Tensor):
                self.leaves.append(leaf)
                continue
            if position == chosen:
                self.loss = len(tensors)
            self.leaves.append(Place(len(tensors)))
            # A clone keeps AOT autograd from treating results as views of inputs or of each other.
            tensors.append(leaf if position == chosen else leaf.detach().clone())
        with torch.no_grad():
            for one, value in zip(self.rebound, values, strict=True):
                one.write(self.inner.get_buffer(one.full_name), value)
        return tensors


@dataclass(frozen=True, slots=True)
class Place:
    """Stands for the n-th tensor among the results."""

    index: int


def find_loss(leaves: Sequence[Any], index: int | None) -> int:
    """Return which of the flattened results is the loss.

    Raises:
        CaptureError: ``index`` names no scalar that needs a gradient, or None leaves a choice, or there is none.
    """
    candidates = [
        position for position, leaf in enumerate(leaves)
        if isinstance(leaf, torch.Tensor) and leaf.numel() == 1 and leaf.requires_grad
    ]
    listing = "\n".join(f"[{position}] {_describe(leaf)}" for position, leaf in enumerate(leaves))
    if index is not None:
        index = index + len(leaves) if index < 0 else index
        if index in candidates:
            return index
        raise CaptureError(
            f"loss={index} is not a scalar that needs a gradient", detail=f"the model returns\n{listing}",
            remedy=f"give loss= one of {candidates}" if candidates else "return the loss from forward, not detached",
        )
    scalars = [position for position in candidates if leaves[position].dim() == 0] or candidates
    if len(scalars) == 1:
        return scalars[0]
    what = f"{len(scalars)} scalars that could be the loss" if scalars else "no scalar that needs a gradient"
    raise CaptureError(
        f"the model returns {what}", detail=f"the model returns\n{listing}",
        remedy=f"give loss= one of {scalars}" if scalars else
        "return the loss from forward (mean or sum over the batch), and leave some parameters trainable",
    )


def _describe(leaf: Any) -> str:
    if not isinstance(leaf, torch.Tensor):
        return repr(leaf)
    gradient = ", needs a gradient" if leaf.requires_grad else ""
    return f"{str(leaf.dtype).removeprefix('torch.')}{list(leaf.shape)}{gradient}"


# ---------------------------------------------------------------------- capture
def _capture(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], training: _Training | None, name: str,
    strict_ops: bool,
) -> Captured:
    args, kwargs = pytree.tree_map_only(torch.Tensor, detached, (args, dict(kwargs)))
    refuse_unknown_names(module, kwargs)
    refuse_foreign(module, args, kwargs)
    traced, rebound = traced_by_dynamo(module, args, kwargs)
    refuse_inputs(traced)
    args, kwargs = all_plain((args, kwargs))
    with contextlib.ExitStack() as stack:
        if has_loops(traced):  # torch asks for the symbols of their results even where all sizes are fixed
            fake_mode = FakeTensorMode(shape_env=ShapeEnv())
            args, kwargs = pytree.tree_map_only(
                torch.Tensor, lambda leaf: fake_mode.from_tensor(leaf, static_shapes=True), (args, dict(kwargs)),
            )
            stack.enter_context(tracing(TracingContext(fake_mode)))
        results = _Results(traced, training, names_of_attributes(module), rebound)
        try:
            return with_regions_of_all_kinds(
                lambda: export(results, module, args, kwargs, name=name, strict_ops=strict_ops),
            )
        finally:
            let_go(traced)


class Results(Protocol):
    """A module that calls another one, its ``inner``, and returns the tensors among the results as a list.

    Attributes:
        leaves: The flattened results; a `Place` for each tensor.
        spec: Their structure.
        loss: Place of the loss among the tensors, or None.
        loss_scale: What the backward ops begin from.
        keeps_writes: Whether writes into arguments become outputs.
    """

    leaves: list[Any]
    spec: pytree.TreeSpec | None
    loss: int | None
    loss_scale: float
    keeps_writes: bool


def export(
    results: Any, module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, name: str,
    strict_ops: bool,
) -> Captured:
    """Trace what calls a module through AOT autograd and import the graph.

    Args:
        results: `Results`, also a torch.nn.Module.
        module: What it calls; its names of parameters and buffers are those of the graph.
        args: Example arguments.
        kwargs: Example keyword arguments.
        name: Name of the graph.
        strict_ops: Refuse ops that would run through the generic codelet.
    """
    with contextlib.ExitStack() as stack, whole(), constants_saved():
        joint = aot_export_joint_with_descriptors(
            stack, results, args, dict(kwargs), decompositions=decompositions(),
        )
        graph_module = without_complex(joint.graph_module)
    _drop_dead(graph_module)
    names = _canonical_names(module, results)
    placeholders = [node for node in graph_module.graph.nodes if node.op == "placeholder"]
    given = [_given(node, names, results) for node in placeholders]
    imported = import_graph(graph_module, name=name, given=given, strict_ops=strict_ops)
    imported = with_complex_results(imported, graph_module)
    return _assemble(imported, placeholders, graph_module, names, results, args, kwargs)


KEPT = frozenset({printing.PRINT, *map(overload, ASSERTIONS)})
"""Calls that are there for what they do, not for their results."""


def _drop_dead(module: GraphModule) -> None:
    """Remove calls that nothing reads; draws of random bits that nothing reads go too."""
    module.graph.eliminate_dead_code(
        is_impure_node=lambda node: node.op in ("placeholder", "output") or node.target in KEPT,
    )


def _canonical_names(module: torch.nn.Module, results: Any) -> dict[str, str]:
    """Map every name of a parameter or buffer to the first name of the same tensor.

    Args:
        module: The model.
        results: What calls it; Dynamo may have given it names of its own, as before torch 2.11 to those of a module
            whose forward is not its class's.
    """
    first: dict[int, str] = {}
    names: dict[str, str] = {}
    for name, tensor in _members(module):
        names[name] = first.setdefault(id(tensor), name)
    for name, tensor in _members(results):
        if id(tensor) in first:
            names.setdefault(_inner(name), first[id(tensor)])
    return names


def _members(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)


def _given(node: Node, names: Mapping[str, str], results: Results) -> Given:
    """Say what a placeholder of the joint graph is."""
    match node.meta["desc"]:
        case desc.ParamAOTInput(target=target):
            return Given(Role.WEIGHT, names[_inner(target)] if node.users else "")
        case desc.BufferAOTInput(target=target):
            return Given(Role.BUFFER, names[_inner(target)])
        case desc.TangentAOTInput(output=output):
            is_loss = isinstance(output, desc.PlainAOTOutput) and output.idx == results.loss
            fake = node.meta["val"]
            scale = results.loss_scale if is_loss else 0.0
            value = torch.full(tuple(fake.shape), scale, dtype=fake.dtype)
            return Given(Role.CONSTANT, "loss_scale" if is_loss else node.name, value)
        case desc.PlainAOTInput(idx=index):
            return Given(Role.INPUT, f"input_{index}")
        case desc.ForwardTokenAOTInput() | desc.BackwardTokenAOTInput():
            return Given(Role.CONSTANT, node.name, torch.empty(0))
        case other:
            raise CaptureError(
                f"the model takes an input that cannot be captured: {other.expr()}",
                remedy="pass tensors that do not share memory with each other or with the model's buffers",
            )


def _inner(target: str) -> str:
    return target.removeprefix("inner.")


def _assemble(
    imported: Imported, placeholders: Sequence[Node], module: GraphModule, names: Mapping[str, str], results: Results,
    args: tuple[Any, ...], kwargs: Mapping[str, Any],
) -> Captured:
    graph = imported.graph
    by_desc = {node.meta["desc"]: tensor for node, tensor in zip(placeholders, imported.placeholders, strict=True)}
    output_node = next(node for node in module.graph.nodes if node.op == "output")
    # A state that is only written, as by ``out=``, is an input as well: it has a place on the device.
    read = _read_by_graph(imported) | {
        by_desc[what.mutated_input] for what in output_node.meta["desc"]
        if isinstance(what, desc.InputMutationAOTOutput)
        and not isinstance(what.mutated_input, desc.PlainAOTInput)
    }
    parameters: dict[str, Tensor] = {}
    buffers: dict[str, Tensor] = {}
    for what, tensor in by_desc.items():
        if tensor is None or tensor not in read:
            continue
        if isinstance(what, desc.ParamAOTInput):
            parameters[names[_inner(what.target)]] = tensor
        elif isinstance(what, desc.BufferAOTInput):
            buffers[names[_inner(what.target)]] = tensor
    outputs: dict[int, Tensor] = {}
    updates: list[tuple[Tensor, Tensor]] = []
    gradients: dict[str, Tensor] = {}
    written: dict[int, Tensor] = {}
    dtypes: dict[Tensor, torch.dtype] = {}
    for what, value, fake in zip(output_node.meta["desc"], imported.results, imported.result_values, strict=True):
        if not isinstance(value, Tensor):
            continue
        match what:
            case desc.PlainAOTOutput(idx=index):
                outputs[index] = value
                assert fake is not None
                dtypes[value] = fake.dtype
            case desc.GradAOTOutput(grad_of=desc.ParamAOTInput(target=target)):
                gradients[names[_inner(target)]] = value
            case desc.InputMutationAOTOutput(mutated_input=mutated):
                state = by_desc[mutated]
                assert state is not None
                if state.role is Role.INPUT and results.keeps_writes:
                    assert isinstance(mutated, desc.PlainAOTInput)
                    written[mutated.idx] = value
                    assert fake is not None
                    dtypes[value] = fake.dtype
                elif state.role is Role.INPUT:
                    _warn_written_input(state)
                else:
                    updates.append((state, value))
    leaves = tuple(outputs[leaf.index] if isinstance(leaf, Place) else leaf for leaf in results.leaves)
    user_outputs = tuple(dict.fromkeys([*(outputs[index] for index in sorted(outputs)), *written.values()]))
    kept = tuple(tensor for tensor in graph.inputs if tensor in read)
    flat, in_spec = pytree.tree_flatten((args, dict(kwargs)))
    arguments = tuple(
        by_desc[desc.PlainAOTInput(index)] if isinstance(leaf, torch.Tensor) else None
        for index, leaf in enumerate(flat)
    )
    assert results.spec is not None
    return Captured(
        graph=dataclasses.replace(graph, inputs=kept, outputs=user_outputs, updates=tuple(updates)),
        arguments=arguments, parameters=parameters, buffers=buffers, gradients=gradients,
        constants={tensor: value for tensor, value in imported.constants.items() if tensor in read},
        loss=None if results.loss is None else outputs[results.loss],
        loss_scale=next((tensor for tensor in kept if tensor.name == "loss_scale"), None),
        in_spec=in_spec, out_spec=results.spec, leaves=leaves,
        output_dtypes=tuple(dtypes[tensor] for tensor in user_outputs), generic_targets=imported.generic_targets,
        written=written,
    )


def _warn_written_input(tensor: Tensor) -> None:
    warnings.warn(
        f"torchipu: the model writes into its input {tensor.name} ({list(tensor.shape)}); the caller's tensor stays as "
        "it is, as on the device", stacklevel=2,
    )


def _read_by_graph(imported: Imported) -> set[Tensor]:
    """Return every tensor that an op or the caller reads."""
    read = {tensor for op in imported.graph.ops for tensor in op.inputs}
    return read | {value for value in imported.results if isinstance(value, Tensor)}


# ---------------------------------------------------------------------- errors
@contextlib.contextmanager
def _tracing(module: torch.nn.Module) -> Iterator[None]:
    """Leave random state, train flags and the module's own tensors as they were, and turn torch's errors into ours.

    AOT autograd puts tensors of its own in place of parameters, name by name. Where a module has two names, it takes
    what it has put there under the first one for the parameter, and puts that back in the end.
    """
    members = [member for member in module.modules() if not isinstance(member, torch.jit.ScriptModule)]
    flags = [(member, member.training) for member in members]
    tensors: list[dict[str, Any]] = [held for member in members for held in (member._parameters, member._buffers)]
    owned = [(held, dict(held)) for held in tensors]
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    except IpuError:
        raise
    except Exception as error:
        raise as_capture_error(error) from error
    finally:
        for member, training in flags:
            member.training = training
        for held, before in owned:
            if any(held.get(name) is not tensor for name, tensor in before.items()):
                held.update(before)
