"""Calls of a graph with nothing between Dynamo, or autograd, and its programs.

At each call AOT autograd sees to inputs that were written, results that alias others, subclasses of tensors, tokens,
random states and sizes. A graph that has none of them is called without that, as is one in training that only writes
elements of inputs without a gradient, such as batch normalisation's: for a small model it takes longer than the kernels
do.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch._C._dynamo.eval_frame import get_eval_frame_callback
from torch._dynamo.compiled_autograd import extract_bw_module
from torch._dynamo.eval_frame import innermost_fn
from torch._functorch._aot_autograd import runtime_wrappers, schemas, utils
from torch._guards import TracingContext
from torch.autograd import forward_ad
from torch.fx import GraphModule

from torchipu.backend.program import Program
from torchipu.backend.saved_block import SavedBlock, Unpacked
from torchipu.backend.second_order import differentiable_once, function_node, once, refuse_tangents

Call = Callable[..., Any]
Boxed = Callable[[list[Any]], list[Any]]

_ABSENT = (
    "mutated_graph_handled_indices", "num_intermediate_bases", "num_outputs_aliased", "num_symints_saved_for_bw",
    "num_opaque_objects_saved_for_bw", "num_tensors_saved_with_no_vc_check", "tokens", "num_backward_tokens",
    "num_graphsafe_rng_states", "is_rng_op_functionalized", "dynamic_outputs", "dynamic_saved_tensors_idxs",
    "grad_enabled_mutation", "indices_of_inputs_that_requires_grad_with_mutations_in_bw",
)
"""Fields of AOT autograd's description of a graph: what it would have to see to at each call."""
_disabled_here = partial(torch._dynamo.disable, recursive=False)
_KINDS = (schemas.OutputType.non_alias, schemas.OutputType.unsafe_view_alias)


@dataclass(slots=True)
class Programs:
    """The programs of a graph, as AOT autograd asked for them: two where it is trained, or one.

    Attributes:
        is_altered: Whether autograd is given more than the graph's own arguments, or anything else at a call: the graph
            holds tensors, or autocast or hooks of what is saved were on while it was compiled.
        forward: Takes the inputs, and returns the results and what is saved.
        backward: Takes what is saved and the gradients of the results, and returns those of the inputs.
        num_inputs: Placeholders of the forward.
        without_gradient: Inputs that get none.
        inference: Takes the inputs, and returns the results, where nothing between Dynamo and it is left to do.
        trained: Forward and backward as programs, each where it is one of known sizes and nothing else.
    """

    is_altered: bool
    forward: Boxed | None = None
    backward: Boxed | None = None
    num_inputs: int = -1
    without_gradient: frozenset[int] = frozenset()
    inference: Program | None = None
    trained: list[Program] = field(default_factory=list)

    @classmethod
    def of(cls, gm: GraphModule) -> Programs:
        """Return the programs of a graph of Dynamo's that is compiled now: none as yet."""
        has_tensors = any(True for _ in itertools.chain(gm.parameters(), gm.buffers()))
        return cls(has_tensors or torch._C._is_any_autocast_enabled() or utils.top_saved_tensors_hooks() is not None)

    def note_inference(self, program: Program, num_inputs: int) -> None:
        """Take note of the only program of a graph, as AOT autograd describes that now."""
        context = TracingContext.try_get()
        try:
            if context is not None and not self.is_altered and _is_plain_inference(context.fw_metadata, num_inputs):
                self.inference, self.num_inputs = program, num_inputs
        except AttributeError:  # a private name that another release of torch lacks
            return

    def note_backward(self, run: Boxed, gm: GraphModule) -> None:
        """Take note of the backward: its program, and its graph."""
        (returned,) = next(node for node in gm.graph.nodes if node.op == "output").args
        self.backward = run
        self.without_gradient = frozenset(place for place, gradient in enumerate(returned) if gradient is None)


def shortened(run: Call, programs: Programs, name: str) -> Call:
    """Return a call that leaves AOT autograd out where the graph gives it nothing to do.

    Args:
        run: AOT autograd's call of a graph.
        programs: What it calls.
        name: Of the graph, for messages.
    """
    if programs.forward is not None:
        return _shortened_training(differentiable_once(run, name), programs, name)
    if programs.inference is None:
        return _without_tangents(run, name)
    return _shortened_inference(run, programs.inference, programs.num_inputs, name)


def _without_tangents(run: Call, name: str) -> Call:
    """Return a call that refuses what it would compute no derivative of."""

    def call(*arguments: Any) -> Any:
        refuse_tangents(arguments, name)
        return run(*arguments)

    return call


def _shortened_inference(run: Call, program: Program, num_inputs: int, name: str) -> Call:
    """Return a call that leaves AOT autograd out where the program does as at most calls, which records nothing."""

    def call(*arguments: Any) -> Any:
        if forward_ad._current_level >= 0:
            refuse_tangents(arguments, name)
        quick = program.quick
        if quick is not None and len(arguments) == num_inputs and not torch._C._are_functorch_transforms_active():
            results = quick(arguments)
            if results is not None:
                return results
        return run(*arguments)

    return call


def _shortened_training(run: Call, programs: Programs, name: str) -> Call:
    """Return a call that leaves AOT autograd out after the first backward."""
    short: Call | None = None
    function: Any = None  # that of AOT autograd, until it is known whether another one may stand for it

    def call(*arguments: Any) -> Any:
        nonlocal short, function
        if forward_ad._current_level >= 0:
            refuse_tangents(arguments, name)
        made = function
        if made is not None and programs.backward is not None:
            function = None
            short = _short_call(made, programs, name)
            programs.forward = None  # that is settled
        if short is not None and torch.is_grad_enabled() and not torch._C._are_functorch_transforms_active():
            return short(*arguments)
        results = run(*arguments)
        if programs.forward is not None and len(arguments) == programs.num_inputs:  # none is the double of another
            node = function_node(results)
            function = None if node is None else node._forward_cls
        return results

    return call


def _short_call(function: Any, programs: Programs, name: str) -> Call | None:
    """Return a call of the programs that autograd records; None for a graph that needs AOT autograd at each call.

    Args:
        function: The autograd function that AOT autograd has made of the graph.
        programs: What it calls.
        name: Of the graph, for messages.
    """
    try:
        is_plain = _is_plain(function, programs)
    except AttributeError:  # a private name that another release of torch lacks
        return None
    return _function_of(function, programs, name) if is_plain else None


def _is_plain(function: Any, programs: Programs) -> bool:
    """Whether AOT autograd's function does nothing at a call but run our programs."""
    if programs.is_altered or programs.forward is None or programs.backward is None:
        return False
    metadata = function.metadata
    if function.compiled_fw is not programs.forward or innermost_fn(function.compiled_bw) is not programs.backward:
        return False
    if function.maybe_subclass_metadata is not None or any(getattr(metadata, what) for what in _ABSENT):
        return False
    if len(metadata.input_info) != programs.num_inputs or not all(map(_is_plain_result, metadata.output_info)):
        return False
    if not all(_is_plainly_written(metadata.input_info[place]) for place in metadata.mutated_inp_runtime_indices):
        return False
    if not all(map(_is_plain_gradient, metadata.subclass_tangent_meta)):
        return False
    # AOT autograd detaches those that want a gradient and get none.
    return not any(
        info.requires_grad and info.is_leaf and place in programs.without_gradient
        for place, info in enumerate(metadata.input_info)
    )


def _is_plain_inference(metadata: Any, num_inputs: int) -> bool:
    """Whether AOT autograd does nothing at a call of a graph without a backward but run our program."""
    if metadata is None or any(getattr(metadata, what) for what in (*_ABSENT, "mutated_inp_runtime_indices")):
        return False
    tensors = (*metadata.subclass_inp_meta, *metadata.subclass_fw_graph_out_meta)
    if not all(isinstance(meta, (int, schemas.PlainTensorMeta)) for meta in tensors):
        return False
    return len(metadata.input_info) == num_inputs and all(map(_is_plain_result, metadata.output_info))


def _is_plain_result(info: Any) -> bool:
    return info.output_type in _KINDS and issubclass(info.raw_type, torch.Tensor)


def _is_plainly_written(info: Any) -> bool:
    """Whether an input that a graph writes gets other elements and nothing else, unseen by autograd."""
    is_reshaped = info.mutates_metadata or info.mutates_storage_metadata or info.mutation_inductor_storage_resize
    return info.mutates_data and info.is_leaf and not info.requires_grad and not is_reshaped


def _is_plain_gradient(meta: Any) -> bool:
    return isinstance(meta, schemas.PlainTensorMeta) and meta.memory_format is not None


def _function_of(aot: Any, programs: Programs, name: str) -> Call:
    """Return the call of an autograd function that stands for AOT autograd's, whose attributes torch looks at."""
    metadata = aot.metadata
    assert programs.forward is not None and programs.backward is not None
    run_forward: Boxed = programs.forward
    run_backward: Boxed = programs.backward
    untraced_backward: Boxed = aot.compiled_bw
    targets: Sequence[int] = metadata.mutated_inp_runtime_indices
    written = len(targets)
    count, saved = written + metadata.num_outputs, metadata.tensors_saved_for_backwards_with_vc_check_slice
    wanted = [place for place, info in enumerate(metadata.output_info, written) if info.requires_grad_for_backward]
    unwanted = [place for place, info in enumerate(metadata.output_info, written) if not info.requires_grad]
    formats = [meta.memory_format for meta in metadata.subclass_tangent_meta]
    is_nondeterministic = metadata.deterministic is False
    blocks = _Blocks(programs, saved)

    class CompiledFunction(aot):
        """The same as AOT autograd's function, of a graph that leaves it nothing to do."""

        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> Any:
            block = None if utils.top_saved_tensors_hooks() is not None else blocks.found()
            values = None if block is None else block.forward(inputs)
            if block is None or values is None:
                values = run_forward(list(inputs))
                kept = values[saved]
            else:
                ctx.block, ctx._forward_cls = block, InBlock
                kept = values[block.num_results:]
            ctx.save_for_backward(*[value.detach() if value._is_view() else value for value in kept])
            # What compiled autograd reads.
            ctx.symints = ctx.opaque_objects = ctx._tensors_no_vc_check = ()
            if unwanted:
                ctx.mark_non_differentiable(*[values[place] for place in unwanted])
            ctx._materialize_non_diff_grads = False
            ctx.inputs = inputs
            if written:  # in a wrapping, through which autograd does not look; each has its place among the gradients
                return _Written(values[:written]), *itertools.repeat(None, written - 1), *values[written:count]
            return tuple(values[:count])

        @staticmethod
        @_disabled_here
        def backward(ctx: Any, *boxed: Any) -> Any:
            gradients: Sequence[Any] = boxed[0] if len(boxed) == 1 and type(boxed[0]) is list else boxed
            tangents = [gradients[place] for place in wanted]
            block: SavedBlock | None = getattr(ctx, "block", None)
            if is_nondeterministic and torch.are_deterministic_algorithms_enabled():
                return aot.backward(_unpacked(ctx, block), *boxed)  # raises
            for place, (tangent, lies) in enumerate(zip(tangents, formats, strict=True)):
                if type(tangent) is not torch.Tensor:
                    return aot.backward(_unpacked(ctx, block), *boxed)  # takes it apart, or raises
                if tangent.stride() != lies.stride:
                    tangents[place] = runtime_wrappers.coerce_to_expected_memory_format(tangent, lies)
            held = ctx.saved_tensors
            # Dynamo is not to look into the program where it compiles what calls backward.
            is_looked_at = get_eval_frame_callback() is not None
            found = None if block is None or is_looked_at else block.backward([*held, *tangents])
            if found is None:
                held = held if block is None else block.unpacked(held)
                found = (untraced_backward if is_looked_at else run_backward)([*held, *tangents])
            return once(found, ctx.inputs, name) if torch.is_grad_enabled() else tuple(found)

    class InBlock(CompiledFunction):
        """The same for compiled autograd where the forward saved a block: the graph of the backward reads that."""

        _lazy_backward_info = runtime_wrappers.CachedAutogradLazyBackwardCompileInfo(
            lambda: blocks.reading(extract_bw_module(aot)),
        )

    record: Call = super(torch.autograd.Function, CompiledFunction).apply  # type: ignore[misc]
    return _with_writing(record, targets) if written else record


def _unpacked(ctx: Any, block: SavedBlock | None) -> Any:
    """Return the context of a backward with all saved values as tensors."""
    return ctx if block is None else Unpacked(ctx, block.unpacked(ctx.saved_tensors))


@dataclass(slots=True)
class _Blocks:
    """Whether what the forward of a graph saves lies in a block, which shows once both programs have run.

    Where hooks are called for what is saved, each value is a tensor: torch.utils.checkpoint asks for as many when it
    runs a forward again, whatever has run in between.

    Attributes:
        programs: Of the graph.
        saved: Places of what is saved among the results of the forward.
        block: What was found.
        was_sought: Whether it was sought.
    """

    programs: Programs
    saved: slice
    block: SavedBlock | None = None
    was_sought: bool = False

    def found(self) -> SavedBlock | None:
        """Return how it lies in a block, or None where each saved value is a tensor."""
        trained = self.programs.trained
        if not self.was_sought and len(trained) == 2 and all(program.quick is not None for program in trained):
            self.was_sought = True
            forward, backward = trained
            self.block = SavedBlock.of(forward, backward, self.saved)
        return self.block

    def reading(self, backward: Any) -> GraphModule:
        """Return the graph of the backward as it reads a block."""
        assert self.block is not None
        assert isinstance(backward, GraphModule)
        return self.block.reading(backward)


@dataclass(slots=True)
class _Written:
    """What inputs that a graph writes hold after it."""

    values: Sequence[torch.Tensor]


def _with_writing(record: Call, targets: Sequence[int]) -> Call:
    """Return a call that writes inputs once autograd has recorded it, as it notes the versions of what is saved then.

    Args:
        record: Returns `_Written` and None, as many as there are targets together, and the results.
        targets: Places of the inputs.
    """
    count = len(targets)

    def call(*arguments: Any) -> Any:
        written, *others = record(*arguments)
        torch._foreach_copy_([arguments[place] for place in targets], written.values)
        return others[count - 1:]

    return call
