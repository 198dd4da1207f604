"""Text of every level of the IR: deterministic, for goldens, dumps and error messages.

Names of activations and gradients are numbered in order of appearance; what the user or the model names keeps its
name. No addresses, object ids, times or directories enter the text.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from torchipu.ir.graph import Graph, Op, Tensor, walk_ops
from torchipu.ir.mapping import TileMapping
from torchipu.ir.program import (
    AllReduce,
    Call,
    ComputeSet,
    Copy,
    Executable,
    Execute,
    Gather,
    HostCopy,
    If,
    OnIpus,
    Program,
    Repeat,
    RepeatWhile,
    Sequence,
    Sync,
    Variable,
    VertexGroup,
)
from torchipu.ir.schedule import Schedule
from torchipu.ir.types import DType, Leg, Role, Source

MAX_LINE = 120
INDENT = "  "

# Schema defaults that say nothing to a reader; None, False and empty lists are left out for any name.
DEFAULTS: Mapping[str, object] = {
    "alpha": 1, "beta": 1, "step": 1, "groups": 1, "stride": 1, "dilation": 1, "recomputed_from": "",
}


class Names:
    """Names as the text shows them: ``%w`` as it stands, values in between numbered in order of appearance."""

    def __init__(self, graph: Graph | None = None) -> None:
        self._shown: dict[str, str] = {}
        self._taken: set[str] = set()
        self._next = 0
        if graph is None:
            return
        for tensor in graph.inputs:
            self._keep(tensor.name)
        for op in walk_ops(graph.ops):
            for tensor in op.outputs:
                self.tensor(tensor)
            for tensor in (formal for body in op.bodies for formal in body.inputs):
                self.tensor(tensor)

    def tensor(self, tensor: Tensor) -> str:
        """Return the name of a graph tensor, with its ``%``."""
        if tensor.name not in self._shown:
            self._number(tensor.name)
        return self._shown[tensor.name]

    def variable(self, variable: Variable) -> str:
        """Return the name of a variable: that of its tensor where known, else numbered if it is no named state."""
        if variable.name not in self._shown:
            base, dot, suffix = variable.name.partition(".")
            if dot and base in self._shown:
                self._shown[variable.name] = f"{self._shown[base]}.{suffix}"
            elif variable.role in (Role.ACTIVATION, Role.GRADIENT):
                self._number(variable.name)
            else:
                self._keep(variable.name)
        return self._shown[variable.name]

    def _keep(self, name: str) -> None:
        self._shown[name] = f"%{name}"
        self._taken.add(name)

    def _number(self, name: str) -> None:
        while str(self._next) in self._taken:
            self._next += 1
        self._shown[name] = f"%{self._next}"
        self._next += 1


# --------------------------------------------------------------------------- graph
def format_graph(graph: Graph) -> str:
    """Return the text of a graph, one line an op."""
    return "\n".join(graph_lines(graph))


def graph_lines(graph: Graph) -> list[str]:
    """Return the lines of a graph's text; ``op_line`` tells which belongs to an op."""
    names = Names(graph)
    body = [INDENT + line for op in graph.ops for line in _op_lines(op, names)]
    ends = [f"{INDENT}update {names.tensor(state)} <- {names.tensor(value)}" for state, value in graph.updates]
    ends.append(f"{INDENT}return {', '.join(names.tensor(tensor) for tensor in graph.outputs)}".rstrip())
    return [*_graph_head(graph, names), *body, *ends, "}"]


def op_line(graph: Graph, position: int) -> int:
    """Return the index, in ``graph_lines``, of the op at a position."""
    names = Names(graph)
    return len(_graph_head(graph, names)) + sum(len(_op_lines(op, names)) for op in graph.ops[:position])


def _op_lines(op: Op, names: Names) -> list[str]:
    """Return the line of an op, and below it those of the graphs that it runs."""
    lines = [format_op(op, names)]
    for body in op.bodies:
        formals = ", ".join(_typed(tensor, names) for tensor in body.inputs)
        lines.append(f"{INDENT}{body.name}({formals}) {{")
        lines += [INDENT * 2 + line for inner in body.ops for line in _op_lines(inner, names)]
        lines.append(f"{INDENT * 2}yield {', '.join(names.tensor(tensor) for tensor in body.outputs)}".rstrip())
        lines.append(f"{INDENT}}}")
    return lines


def _graph_head(graph: Graph, names: Names) -> list[str]:
    arguments = [f"{_typed(tensor, names)} {tensor.role.value}" for tensor in graph.inputs]
    line = f"graph {graph.name}({', '.join(arguments)}) {{"
    if len(line) <= MAX_LINE:
        return [line]
    return [f"graph {graph.name}(", *(f"{INDENT * 2}{argument}," for argument in arguments), ") {"]


def format_op(op: Op, names: Names | None = None) -> str:
    """Return the line of an op, without indentation.

    Args:
        op: The op.
        names: Names of the graph it belongs to; without them its tensors print under their own names.
    """
    parts = [_computation(op, names), _place(op), _comment(op.source)]
    return "  ".join(part for part in parts if part)


def _computation(op: Op, names: Names | None) -> str:
    kind = f"generic<{op.target}>" if op.kind == "generic" and op.target else op.kind
    call = f"{kind}({_operands(op, names)})"
    attrs = ", ".join(f"{name}={format_value(value)}" for name, value in op.attrs.items() if _is_telling(name, value))
    results = ", ".join(_typed(tensor, names) for tensor in op.outputs)
    return (f"{results} = " if results else "") + call + (f" {{{attrs}}}" if attrs else "")


def _operands(op: Op, names: Names | None) -> str:
    """Write the tensor arguments; members of a list stand in brackets, an absent one as ``_``."""
    if not op.operands:
        return ", ".join(_name(tensor, names) for tensor in op.inputs)
    rest, parts = iter(op.inputs), []
    for operand in op.operands:
        if "[" in operand:
            marks = operand[operand.index("[") + 1 : -1]
            parts.append(f"[{', '.join(_next_name(rest, names) if mark == 'x' else '_' for mark in marks)}]")
        else:
            parts.append(_next_name(rest, names))
    # An op whose operands do not fit its inputs is broken, but its text must still come out.
    return ", ".join([*parts, *(_name(tensor, names) for tensor in rest)])


def _next_name(tensors: Iterable[Tensor], names: Names | None) -> str:
    tensor = next(iter(tensors), None)
    return "?" if tensor is None else _name(tensor, names)


def _name(tensor: Tensor, names: Names | None) -> str:
    return f"%{tensor.name}" if names is None else names.tensor(tensor)


def _typed(tensor: Tensor, names: Names | None) -> str:
    return f"{_name(tensor, names)}: {tensor.dtype.text}[{','.join(map(str, tensor.shape))}]"


def _is_telling(name: str, value: object) -> bool:
    """Whether an attribute says more than the schema's default."""
    if value is None or value is False:
        return False
    if isinstance(value, (list, tuple)):
        return bool(value) and not (name == "present" and all(value))
    return not (name in DEFAULTS and type(value) is type(DEFAULTS[name]) and value == DEFAULTS[name])


def format_value(value: object) -> str:
    """Return the text of an attribute; objects of unknown type print as their type, never with an address."""
    if isinstance(value, DType):
        return value.text
    if isinstance(value, (list, tuple)):
        inner = ", ".join(format_value(item) for item in value)
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    if value is None or isinstance(value, (bool, int, float, complex, str)):
        return repr(value)
    return f"<{type(value).__name__}>"


def _place(op: Op) -> str:
    if op.placement is not None:
        place = op.placement
        return f"@ipu{place.ipu} {place.stage}{place.leg.value} block={place.block}"
    if op.block is not None:
        name, ipu = op.block
        return f"@{op.leg.value} block={name}" + ("" if ipu is None else f" ipu={ipu}")
    return "" if op.leg is Leg.FORWARD else f"@{op.leg.value}"


def _comment(source: Source) -> str:
    if source.file:
        return f"# {os.path.basename(source.file)}:{source.line}"
    return f"# {source.module}" if source.module else ""


# --------------------------------------------------------------------------- schedule
def format_schedule(schedule: Schedule, arrow_at: int | None = None, note: str = "") -> str:
    """Return a schedule as a grid: one row a pipeline cycle, one column an IPU.

    Args:
        schedule: The schedule.
        arrow_at: Row that gets an arrow.
        note: Text after the arrow.
    """
    cells = [[" ".join(map(str, actions)) for actions in step] for step in schedule.steps]
    columns = max((len(row) for row in cells), default=0)
    widths = [max(len(row[column]) for row in cells if column < len(row)) for column in range(columns)]
    lines = ["   ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=False)) for row in cells]
    if arrow_at is not None:
        lines[arrow_at] += f"   <-- {note}".rstrip()
    return "\n".join(line.rstrip() for line in lines)


# --------------------------------------------------------------------------- mapping
def format_mapping(mapping: TileMapping) -> str:
    """Return a mapping as ranges of tiles that hold equally many neighbouring elements: ``tiles 0..319 x 1``."""
    groups: list[list[int]] = []  # first tile, last tile, elements a tile, begin, end
    for tile, begin, end in mapping.runs:
        last = groups[-1] if groups else None
        if last and tile == last[1] + 1 and end - begin == last[2] and begin == last[4]:
            last[1], last[4] = tile, end
        else:
            groups.append([tile, tile, end - begin, begin, end])
    parts, position = [], 0
    for first, final, count, begin, end in groups:
        tiles = f"{first}" if first == final else f"{first}..{final}"
        parts.append(f"{tiles} x {count}" + ("" if begin == position else f" from {begin}"))
        position = end
    return f"tiles {', '.join(parts)}" if parts else "no tiles"


def format_mappings(mappings: Mapping[Tensor, TileMapping]) -> str:
    """Return the mapping of each tensor, a line each, by the names that the tensors have."""
    return "\n".join(f"{_typed(tensor, None)} {format_mapping(mapping)}" for tensor, mapping in mappings.items())


# --------------------------------------------------------------------------- program
def format_program(program: Program, names: Names | None = None) -> str:
    """Return the text of a program.

    Args:
        program: The program; functions that it calls are named, not repeated.
        names: Names of the graph it comes from, so that both texts agree.
    """
    return "\n".join(_program_lines(program, names or Names()))


def format_executable(executable: Executable, graph: Graph | None = None) -> str:
    """Return the text of an executable: variables, each function once, then the entry points.

    Args:
        executable: The executable.
        graph: The graph it comes from, so that both texts use the same names.
    """
    names = Names(graph)
    plural = "" if executable.num_ipus == 1 else "s"
    copies = "" if executable.instances == 1 else f"{executable.instances} instances of "
    copies += "" if executable.replicas == 1 else f"{executable.replicas} replicas of "
    lines = [f"executable on {copies}{executable.num_ipus} ipu{plural} {{"]
    lines += [INDENT + _variable_line(variable, executable, names) for variable in executable.variables]
    lines.append("}")
    for word, programs in (("function", executable.functions), ("program", executable.programs)):
        for name, program in programs.items():
            lines += [f"{word} {name} {{", *_indented(_program_lines(program, names)), "}"]
    return "\n".join(lines)


def _variable_line(variable: Variable, executable: Executable, names: Names) -> str:
    shape = ",".join(map(str, variable.shape))
    words = [f"{names.variable(variable)}: {variable.dtype.text}[{shape}] {variable.role.value}"]
    if variable.depth > 1:
        words.append(f"depth={variable.depth}")
    if variable.off_chip:
        words.append("off_chip")
    words += [f"@ipu{variable.ipu}", format_mapping(variable.mapping)]
    if variable.name in executable.addresses:
        begin, end = executable.addresses[variable.name]
        words.append(f"at {begin}..{end} B")
    return " ".join(words)


def _indented(lines: Iterable[str]) -> list[str]:
    return [INDENT + line for line in lines]


def _program_lines(program: Program, names: Names) -> list[str]:
    match program:
        case Sequence(body=body):
            return [line for part in body for line in _program_lines(part, names)]
        case Repeat(count=count, body=part):
            return [f"repeat {count} {{", *_indented(_program_lines(part, names)), "}"]
        case If(condition=condition, then=then, otherwise=otherwise):
            lines = [f"if {names.variable(condition)} {{", *_indented(_program_lines(then, names))]
            return [*lines, "} else {", *_indented(_program_lines(otherwise, names)), "}"]
        case RepeatWhile(test=test, condition=condition, body=part):
            lines = ["repeat {", *_indented(_program_lines(test, names)), f"}} while {names.variable(condition)} {{"]
            return [*lines, *_indented(_program_lines(part, names)), "}"]
        case OnIpus(bodies=bodies):
            lines = []
            for position, part in enumerate(bodies):
                lines += [f"{INDENT}{position}:", *_indented(_indented(_program_lines(part, names)))]
            return ["on ipus {", *lines, "}"]
        case Execute(compute_set=compute_set):
            return _compute_set_lines(compute_set, names)
        case Call(function=function, micro_batch=micro_batch):
            return [f"call {function}" + ("" if micro_batch is None else f" mb={micro_batch}")]
        case Copy():
            return [_copy_line(program, names)]
        case Gather(variables=variables):
            return [f"gather {', '.join(map(names.variable, variables))}  # {_exchanged(program)}"]
        case HostCopy(stream=stream, variable=variable, to_device=to_device):
            device, host = names.variable(variable), f"host {stream!r}"
            route = f"{host} -> {device}" if to_device else f"{device} -> {host}"
            beside = "" if program.overlap == "none" else f", overlaps in the {program.overlap.replace('_', ' ')}"
            return [f"copy {route}  # host, {variable.device_bytes} B{beside}"]
        case AllReduce(variables=variables, mean=mean, replicas=replicas):
            how, total = "mean" if mean else "sum", sum(variable.device_bytes for variable in variables)
            listed = ", ".join(map(names.variable, variables))
            how = "" if program.kind in ("broadcast", "all_to_all", "point_to_point") else f" {how}"
            return [f"{program.kind}{how} {listed}  # {replicas} replicas, {total} B"]
        case Sync(scope=scope):
            return [f"sync {scope}"]
    raise TypeError(f"{type(program).__name__} is not a program")


def _compute_set_lines(compute_set: ComputeSet, names: Names) -> list[str]:
    head = f"execute {compute_set.name} @ipu{compute_set.ipu}"
    return [head, *_indented(_group_line(group, names) for group in compute_set.groups)]


def _group_line(group: VertexGroup, names: Names) -> str:
    operands = ", ".join(f"{name}={names.variable(variable)}" for name, variable in group.fields.items())
    return f"{group.codelet} {format_mapping(group.runs)} {{{operands}}}"


def _copy_line(copy: Copy, names: Names) -> str:
    words = _exchanged(copy) if copy.src.ipu == copy.dst.ipu else f"link, {copy.total_bytes} B"
    if copy.table:
        words += f", the trip's row of {names.variable(copy.src if copy.table == 'src' else copy.dst)}"
    return f"copy {names.variable(copy.src)} -> {names.variable(copy.dst)}  # {words}"


def _exchanged(step: Copy | Gather) -> str:
    words = f"exchange, {step.total_bytes} B, busiest tile {step.max_tile_bytes} B"
    return f"{words}, {step.fragments} fragments" if step.fragments > 1 else words
