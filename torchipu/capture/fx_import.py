"""From an ATen FX graph with fake values to our Graph: one Op for each call, with source, leg and block."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.fx import GraphModule, Node

from torchipu.capture.available_memory import MATRIX_OPS, available_memory_of, note_available_memory
from torchipu.capture.available_memory import TARGET as AVAILABLE_MEMORY
from torchipu.capture.collectives import group_of
from torchipu.capture.control import Body, import_control, is_control
from torchipu.capture.float8 import hold_bytes
from torchipu.capture.folded_constants import fold_constants
from torchipu.capture.fx_source import (
    attributes_of,
    block_of,
    checkpoint_region_of,
    partials_of,
    side_by_side_of,
    source_of,
)
from torchipu.capture.fx_types import NARROWED, tensor_dtype
from torchipu.capture.fx_values import (
    are_bfloats,
    as_results,
    attribute_of,
    concrete,
    holds_tensors,
    masked_results,
    real_value,
)
from torchipu.capture.manual_updates import MARKS
from torchipu.capture.refusals import block_text_of, is_number, text_of, uncapturable, unsupported
from torchipu.capture.strides import order_by_memory
from torchipu.capture.symbols import NoFormula, Symbols
from torchipu.capture.written_state import unwrap_writes
from torchipu.errors import ConstraintError, UnsupportedOpError
from torchipu.ir.graph import Graph, Op, Tensor
from torchipu.ir.types import DType, Leg, Role, Source
from torchipu.optable import spec as op_table
from torchipu.optable.assertion import TARGETS as ASSERTIONS
from torchipu.optable.collective import PATTERNS, WAIT
from torchipu.optable.generic import EFFECT_TOKEN
from torchipu.optable.marks import BFLOATS, CHECKPOINT_REGION

aten = torch.ops.aten
ATTENTION = "aten._scaled_dot_product_flash_attention_for_cpu"  # and its gradient
DROPPED_ARGUMENTS = frozenset({"memory_format", "layout", "device", "pin_memory"})
CONVOLUTIONS = frozenset({"aten.convolution.default", "aten.convolution_backward.default"})
IDENTITIES = frozenset({"aten.lift.default", "aten.lift_fresh.default", "aten.lift_fresh_copy.default",
                        "aten.detach.default", "aten.alias.default", AVAILABLE_MEMORY})
"""In a graph without in-place writes these give back their operand."""

CHECKS = frozenset({"aten._assert_tensor_metadata.default", "aten._assert_scalar.default",
                    "aten.sym_constrain_range.default", "aten.sym_constrain_range_for_size.default"})
"""Calls with no result that ask for what capture knows: shapes, types and sizes."""


@dataclass(frozen=True, slots=True)
class Given:
    """What the caller knows of a placeholder.

    Attributes:
        role: What the tensor is to the model.
        name: Name in the IR; empty takes the placeholder's.
        value: The value, for a placeholder that becomes a constant.
    """

    role: Role = Role.INPUT
    name: str = ""
    value: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class Imported:
    """A graph, and what torch needs to call it.

    Attributes:
        graph: The graph; ``outputs`` holds each computed result once.
        placeholders: The graph input of each placeholder that takes a tensor, in order; None for one that takes a
            number and for one that became a constant.
        results: What the FX graph returns, in order: a Tensor of ``graph.outputs`` or ``graph.inputs``, or a Python
            constant (None, numbers).
        result_values: The fake value of each result, for its torch dtype and strides; None for constants.
        constants: Values of the graph inputs with the role CONSTANT.
        generic_targets: ATen overloads that run through the generic codelet, each with its count.
        awaited: Inputs that a collective may still be filling when the graph is called.
    """

    graph: Graph
    placeholders: tuple[Tensor | None, ...]
    results: tuple[object, ...]
    result_values: tuple[torch.Tensor | None, ...]
    constants: Mapping[Tensor, torch.Tensor]
    generic_targets: Mapping[str, int] = field(default_factory=dict)
    awaited: frozenset[Tensor] = frozenset()


def import_graph(
    module: GraphModule, *, name: str, given: Sequence[Given] | None = None, leg: Leg | None = None,
    strict_ops: bool = False, symbols: Symbols | None = None,
) -> Imported:
    """Turn an ATen FX graph into our Graph.

    Args:
        module: Functional ATen graph; every tensor has a fake value in ``node.meta["val"]``, of static sizes but for
            ``symbols``.
        name: Name of the graph.
        given: What is known of each placeholder, in order; None makes all of them inputs.
        leg: Leg of all ops; None reads it from the marks of AOT autograd.
        strict_ops: Refuse ops that would run through the generic codelet.
        symbols: What the graph's symbolic sizes become.

    Raises:
        NoFormula: A number that an op takes is computed from symbols in a way that the IR cannot repeat.
        UnsupportedOpError: An element type, a layout or a call that the IR cannot hold; under ``strict_ops`` an op
            with no record (the message lists all of them).
        ConstraintError: An op is supported, but not as it is configured here.
        CaptureError: A size is not known before the program runs.
    """
    unwrap_writes(module)
    fold_constants(module)
    hold_bytes(module)
    order_by_memory(module)
    note_available_memory(module)
    importer = _Importer(module, leg, symbols=symbols)
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    known = [Given()] * len(placeholders) if given is None else list(given)
    for node, what in zip(placeholders, known, strict=True):
        importer.placeholder(node, what)
    returned: tuple[object, ...] = ()
    for node in module.graph.nodes:
        if node.op == "get_attr":
            importer.attribute(node)
        elif node.op == "output":
            returned = as_results(node.args[0])
        elif node.op != "placeholder":
            importer.call(node)
    if strict_ops and importer.generic:
        raise unsupported(importer.generic)
    return importer.finish(name, returned)


class _Importer:
    """State of one import: what each FX node became."""

    def __init__(
        self, module: GraphModule, leg: Leg | None, within: str = "", symbols: Symbols | None = None,
    ) -> None:
        self.module = module
        self.symbols = symbols
        self.leg = leg
        self.within = within
        self.values: dict[Node, object] = {}
        self.inputs: list[Tensor] = []
        self.placeholders: list[Tensor | None] = []
        self.ops: list[Op] = []
        self.constants: dict[Tensor, torch.Tensor] = {}
        self.generic: list[Op] = []
        self.backward: set[Node] = set()
        self.names: set[str] = set()
        self.sources: dict[Tensor, Source] = {}
        self.awaited: set[Tensor] = set()

    # ------------------------------------------------------------------ leaves
    def placeholder(self, node: Node, what: Given) -> None:
        """Enter a graph input."""
        if "tangents" in node.name:
            self.backward.add(node)
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor):
            self.values[node] = self.number(value, node)
            self.placeholders.append(None)
            return
        tensor = self.tensor(what.name or node.name, value, node, what.role)
        self.values[node] = tensor
        self.inputs.append(tensor)
        if what.value is None:
            self.placeholders.append(tensor)
        else:
            self.placeholders.append(None)
            self.constants[tensor] = real_value(what.value, node)

    def attribute(self, node: Node) -> None:
        """Enter a tensor that the FX module holds."""
        value: Any = self.module
        for part in str(node.target).split("."):
            value = getattr(value, part)
        if not isinstance(value, torch.Tensor):
            self.values[node] = value
            return
        tensor = self.tensor(node.name.lstrip("_"), value, node, Role.CONSTANT)
        self.values[node] = tensor
        self.inputs.append(tensor)
        value = real_value(value, node)
        self.constants[tensor] = value.float() if value.dtype in NARROWED else value

    def tensor(self, name: str, value: torch.Tensor, node: Node, role: Role = Role.ACTIVATION) -> Tensor:
        """Return a new IR tensor for a fake value, under a name that is free."""
        name = f"{self.within}{name}"
        unique, count = name, 1
        while unique in self.names:
            unique, count = f"{name}_{count}", count + 1
        self.names.add(unique)
        shape = tuple(self.number(size, node) for size in value.shape)
        return Tensor(unique, shape, tensor_dtype(value, node), role)

    def number(self, value: Any, node: Node) -> Any:
        """Return a plain number, or one of the symbols' sizes; raise where it depends on data."""
        if self.symbols is None:
            return concrete(value, node)
        if isinstance(value, torch.SymFloat):
            with contextlib.suppress(NoFormula):
                return self.symbols.read(value)
            return value  # only an op that takes it needs to know what it is
        return self.symbols.read(value) if isinstance(value, torch.SymInt) else value

    # ------------------------------------------------------------------ calls
    def call(self, node: Node) -> None:
        """Enter one call."""
        if node.target is operator.getitem:
            self.values[node] = self.read(node.args[0])[node.args[1]]
            if node.args[0] in self.backward:  # torch marks not every reader of a result among several
                self.backward.add(node)
            return
        if node.target is torch.ops.higher_order.with_effects:
            self.effect(node)
            return
        if is_control(node.target):
            import_control(node, self)
            return
        if not isinstance(node.target, torch._ops.OpOverload):
            self.values[node] = self.fold(node)
            return
        target = str(node.target)
        if target in CHECKS:
            return
        if target in IDENTITIES:
            operand = self.read(node.args[0])
            if isinstance(operand, Tensor):
                self.values[node] = operand
                self.note_leg(node)
                return
        if target == WAIT:
            given = self.read(node.args[0])
            if given in self.inputs:
                self.values[node] = given
                self.awaited.add(given)
                return
        results = node.meta.get("val")
        if is_number(results):
            self.values[node] = self.number(results, node)
            return
        if node.target is aten._to_copy.default and not isinstance(self.read(node.args[0]), Tensor):
            # torch.vmap makes tensors of numbers in this way.
            self.emit(node, aten.scalar_tensor.default, str(aten.scalar_tensor.default), results)
            return
        self.emit(node, node.target, target, results)

    def fold(self, node: Node) -> object:
        """Return the value of a call on numbers alone, such as a product of sizes."""
        value = node.meta.get("val")
        if callable(node.target) and not isinstance(node.target, torch._ops.HigherOrderOperator) and is_number(value):
            return self.number(value, node)
        raise uncapturable(node, getattr(node.target, "__name__", str(node.target)))

    def effect(self, node: Node) -> None:
        """Append a call that acts by more than its results, such as the check of a matrix for being singular.

        torch hands an empty tensor from one such call to the next; as operand and result it keeps them alive and in
        their order.
        """
        token, overload, *args = node.args
        if not isinstance(overload, torch._ops.OpOverload):
            raise uncapturable(node, getattr(overload, "__name__", str(overload)))
        self.emit(node, overload, str(overload), node.meta.get("val"), args, token)

    def emit(
        self, node: Node, overload: torch._ops.OpOverload, target: str, results: object,
        args: Sequence[Any] | None = None, token: Any = None,
    ) -> None:
        """Append the Op of an ATen call.

        Args:
            node: The call.
            overload: What it calls.
            target: Its name.
            results: Fake values of its results.
            args: Positional arguments; None for those of the node.
            token: Node of the token of effects, if it takes one.
        """
        if overload._schema.is_mutable:
            raise UnsupportedOpError(
                f"{target} writes in place and has no functional form", op=node.format_node(), source=source_of(node),
                remedy="use the out-of-place form of the call",
            )
        inputs, operands, attrs = self.arguments(node.args if args is None else args, node.kwargs, overload, node)
        if token is not None:
            inputs, operands = (self.read(token), *inputs), (EFFECT_TOKEN, *operands)
        outputs, slots, present = self.outputs(node, masked_results(results, attrs.get("output_mask")))
        if not all(present):
            attrs["present"] = tuple(present)
        attrs.update(attributes_of(node))
        if target in PATTERNS:
            attrs.update(group_of(node, attrs))
        region = checkpoint_region_of(node)
        if region is not None:
            attrs[CHECKPOINT_REGION] = region
        partials = partials_of(node)
        if partials is not None and (target in MATRIX_OPS or target.startswith(ATTENTION)):
            attrs["partials"] = partials
        available = available_memory_of(node)
        if available is not None:
            attrs["available_memory"] = available
        if target in MATRIX_OPS and are_bfloats(node):
            attrs[BFLOATS] = True
        if target in CONVOLUTIONS:
            attrs.update(side_by_side_of(node))
        op = Op(
            "generic", inputs, outputs, attrs, target, operands, self.source(node, inputs), None, self.note_leg(node),
            block_of(node),
        )
        op = self.claim(op)
        self.ops.append(op)
        self.sources.update(dict.fromkeys(outputs, op.source))
        self.values[node] = slots

    # ------------------------------------------------------------------ control flow
    def body(self, module: GraphModule, name: str, leg: Leg, source: Source, numbers: Mapping[int, object]) -> Body:
        """Import a graph that a node runs; a call in it without a line of its own has that of the node.

        Args:
            module: The graph.
            name: What its values' names begin with.
            leg: Leg of the node.
            source: Line of the node.
            numbers: What placeholders stand for that take no tensor, by position.
        """
        unwrap_writes(module)
        hold_bytes(module)
        order_by_memory(module)
        inner = _Importer(module, leg, f"{self.within}{name}.", self.symbols)
        inner.names, inner.generic = self.names, self.generic
        returned: tuple[object, ...] = ()
        placeholders = 0
        for node in module.graph.nodes:
            if node.op == "placeholder":
                if placeholders in numbers:
                    inner.values[node] = numbers[placeholders]
                else:
                    inner.placeholder(node, Given(Role.ACTIVATION))
                placeholders += 1
            elif node.op == "get_attr":
                inner.attribute(node)
            elif node.op == "output":
                returned = as_results(node.args[0])
            else:
                inner.call(node)
        results = tuple(inner.read(member) for member in returned)
        ops = tuple(op if op.source.file else replace(op, source=source) for op in inner.ops)
        return Body(ops, tuple(inner.inputs), results, inner.constants)

    def constant(self, like: Tensor, value: torch.Tensor) -> Tensor:
        """Enter a constant of a body as an input of this graph."""
        tensor = replace(like, name=f"{like.name}.value")
        self.names.add(tensor.name)
        self.inputs.append(tensor)
        self.constants[tensor] = value
        return tensor

    def control(self, node: Node, op: Op, slots: list[object]) -> None:
        """Append an op of control flow."""
        op = replace(op, source=self.source(node, op.inputs))
        self.ops.append(op)
        self.sources.update(dict.fromkeys(op.outputs, op.source))
        self.values[node] = slots

    def line(self, node: Node) -> tuple[Source, tuple[str, int | None] | None]:
        """Return the user's line of a node, and its block."""
        return source_of(node), block_of(node)

    def source(self, node: Node, inputs: Sequence[Tensor]) -> Source:
        """Return the user's line of a node, or that of what it reads where torch added the call itself.

        A container of torch's such as ``Sequential`` has no line of the user's, but modules of its own.
        """
        own = source_of(node)
        if own.file or not inputs:
            return own
        lent = next((self.sources[t] for t in inputs if t in self.sources), own)
        return replace(lent, module=own.module) if own.module else lent

    def arguments(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], overload: torch._ops.OpOverload, node: Node,
    ) -> tuple[tuple[Tensor, ...], tuple[str, ...], dict[str, object]]:
        """Sort the arguments of a call into tensors and attributes, by the schema."""
        inputs: list[Tensor] = []
        operands: list[str] = []
        attrs: dict[str, object] = {}
        for position, argument in enumerate(overload._schema.arguments):
            if argument.name in DROPPED_ARGUMENTS:
                continue
            if position < len(args) and not argument.kwarg_only:
                value = self.read(args[position])
            elif argument.name in kwargs:
                value = self.read(kwargs[argument.name])
            elif argument.has_default_value():
                value = argument.default_value
            else:
                continue
            if isinstance(value, Tensor):
                inputs.append(value)
                operands.append(argument.name)
            elif holds_tensors(value):
                assert isinstance(value, (list, tuple))
                inputs += [member for member in value if isinstance(member, Tensor)]
                marks = ",".join("x" if isinstance(member, Tensor) else "_" for member in value)
                operands.append(f"{argument.name}[{marks.replace(',', '')}]")
            elif value is not None or "Tensor" not in str(argument.type):
                attrs[argument.name] = attribute_of(value, node)
        return tuple(inputs), tuple(operands), attrs

    def outputs(self, node: Node, results: object) -> tuple[tuple[Tensor, ...], object, list[bool]]:
        """Return the output tensors, what the node's readers see, and which results are present."""
        if isinstance(results, torch.Tensor):
            tensor = self.tensor(node.name, results, node)
            return (tensor,), tensor, [True]
        if results is None and str(node.target) in ASSERTIONS:
            return (), None, []
        if not isinstance(results, (list, tuple)) or any(isinstance(member, (list, tuple)) for member in results):
            raise UnsupportedOpError(
                f"{node.target} returns neither a tensor nor a flat list of tensors", source=source_of(node),
                remedy="move the call out of the compiled region",
            )
        slots = [
            self.tensor(f"{node.name}_{index}", member, node) if isinstance(member, torch.Tensor)
            else (None if member is None else self.number(member, node))
            for index, member in enumerate(results)
        ]
        tensors = tuple(member for member in slots if isinstance(member, Tensor))
        return tensors, slots, [isinstance(member, Tensor) for member in slots]

    def read(self, argument: Any) -> Any:
        """Return what an FX argument stands for."""
        if isinstance(argument, Node):
            return self.values[argument]
        if isinstance(argument, (list, tuple)):
            return [self.read(member) for member in argument]
        return argument

    def note_leg(self, node: Node) -> Leg:
        """Return the leg of a node and remember it for its readers."""
        if self.leg is not None:
            return self.leg
        tag = node.meta.get("partitioner_tag", "")
        backward = tag in ("is_backward", "must_be_in_backward") or (
            tag not in ("is_forward", "must_be_in_forward")
            and ("autograd_backward" in node.meta or any(operand in self.backward for operand in node.all_input_nodes))
        )
        if backward:
            self.backward.add(node)
        return Leg.BACKWARD if backward else Leg.FORWARD

    def claim(self, op: Op) -> Op:
        """Give an op to its record in the op table, or leave it generic."""
        if op.target in MARKS:
            return op
        record = op_table.lookup(op.target)
        if record is None or not _serves(record, op):
            self.generic.append(op)
            return op
        claimed = _with_kind(op, record.kind)
        for constraint in record.constraints:
            if not constraint.holds(claimed):
                raise ConstraintError(
                    f"{op.target}: {constraint.broken_by(claimed)}", op=text_of(claimed), source=op.source,
                    block=block_text_of(op), remedy=constraint.remedy,
                )
        if not record.supports(claimed):
            self.generic.append(op)
            return op
        return claimed

    # ------------------------------------------------------------------ result
    def finish(self, name: str, returned: tuple[object, ...]) -> Imported:
        """Assemble the graph."""
        results = tuple(self.read(member) for member in returned)
        fakes = tuple(
            member.meta.get("val") if isinstance(member, Node) and isinstance(result, Tensor) else None
            for member, result in zip(returned, results, strict=True)
        )
        inputs = set(self.inputs)
        computed = dict.fromkeys(r for r in results if isinstance(r, Tensor) and r not in inputs)
        counts: dict[str, int] = {}
        for op in self.generic:
            counts[op.target] = counts.get(op.target, 0) + 1
        graph = Graph(name, tuple(self.inputs), tuple(computed), tuple(self.ops))
        return Imported(
            graph, tuple(self.placeholders), results, fakes, self.constants, counts, frozenset(self.awaited),
        )


# ---------------------------------------------------------------------- op table
def _serves(record: op_table.OpSpec, op: Op) -> bool:
    """Whether a record takes the element types of an op; boolean masks beside other operands do not count."""
    dtypes = {tensor.dtype for tensor in op.inputs or op.outputs}
    if len(dtypes) > 1:
        dtypes.discard(DType.BOOL)
    return dtypes <= set(record.dtypes)


def _with_kind(op: Op, kind: str) -> Op:
    return Op(kind, op.inputs, op.outputs, op.attrs, op.target, op.operands, op.source, op.placement, op.leg, op.block)
