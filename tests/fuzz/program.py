"""Programs as data: lines of Python over numbered values, so that one is stored, cut and printed as easily as run."""

from __future__ import annotations

import dataclasses
import functools
import json
import linecache
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tests.fuzz.norms import DisturbedFunctional

DTYPES = {
    "float": torch.float32, "half": torch.float16, "int": torch.int32, "bool": torch.bool, "long": torch.int64,
    "short": torch.int16, "char": torch.int8, "byte": torch.uint8,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}

IN_ITS_TYPES = {"HALF": torch.float16, "FLOAT": torch.float32}
IN_DOUBLE = {"HALF": torch.float64, "FLOAT": torch.float64}
"""What casts that a program writes itself mean where it is run in float64."""
SPECIAL_FLOATS = (
    -math.inf, -3.0, -2.0, -1.0, -1.0, -0.5, -0.0, -0.0, 0.0, 0.0, 0.5, 1.0, 1.0, 2.0, 3.0, math.inf, math.nan,
)
"""Few enough that many are alike, and small sums of the finite ones are exact in half."""


@dataclass(frozen=True, slots=True)
class Given:
    """An input.

    Attributes:
        shape: Its sizes.
        dtype: A key of `DTYPES`.
        layout: How it lies in memory: ``"contiguous"``, ``"transposed"`` (its dimensions the other way round),
            ``"strided"`` (every second element), ``"expanded"`` (its first dimension is one row, repeated),
            ``"channels_last"`` (its second dimension last in memory), ``"rows"`` (rows with something between) or
            ``"offset"`` (behind something else).
        gradient: Whether a gradient is asked for.
        bound: Integers lie below it.
        seed: Of its values.
        offset: About which values of floating point lie, at a distance of about one.
        is_special: Whether values are NaN, infinities, zeros of both signs and few others, and integers those at the
            ends of their range and few others.
        scale: What values of floating point are multiplied by.
        kept: Whether a model keeps it, as a buffer that it may write into.
    """

    shape: tuple[int, ...]
    dtype: str
    layout: str = "contiguous"
    gradient: bool = False
    bound: int = 2
    seed: int = 0
    offset: float = 0.0
    is_special: bool = False
    scale: float = 1.0
    kept: bool = False

    def tensor(self) -> torch.Tensor:
        """Make it, the same at each call."""
        generator = torch.Generator().manual_seed(self.seed)
        shape = self.shape_in_memory()
        if self.is_special and self.dtype != "bool":
            choices = torch.tensor(self.choices(), dtype=DTYPES[self.dtype])
            value = choices[torch.randint(len(choices), shape, generator=generator)]
        elif self.dtype in ("float", "half"):
            value = ((torch.randn(shape, generator=generator) + self.offset) * self.scale).to(DTYPES[self.dtype])
        else:
            value = torch.randint(self.bound, shape, generator=generator).to(DTYPES[self.dtype])
        value = self._laid_out(value)
        return value.requires_grad_() if self.gradient else value

    def choices(self) -> tuple[float, ...]:
        """Return the values of a special input."""
        if self.dtype in ("float", "half"):
            return SPECIAL_FLOATS
        ends = torch.iinfo(DTYPES[self.dtype])
        return (ends.min, ends.min + 1, ends.max, ends.max - 1, 0, 0, 1, 1, 2, 3, *((-1, -2) if ends.min else ()))

    def shape_in_memory(self) -> tuple[int, ...]:
        """Return the sizes of the elements that lie in memory."""
        if self.layout == "transposed":
            return self.shape[::-1]
        if self.layout == "strided":
            return (*self.shape[:-1], 2 * self.shape[-1])
        if self.layout == "rows":
            return (*self.shape[:-1], self.shape[-1] + 3)
        if self.layout == "offset":
            return (self.shape[0] + 1, *self.shape[1:])
        if self.layout == "channels_last":
            return (self.shape[0], *self.shape[2:], self.shape[1])
        return (1, *self.shape[1:]) if self.layout == "expanded" else self.shape

    def _laid_out(self, value: torch.Tensor) -> torch.Tensor:
        if self.layout == "transposed":
            return value.permute(*reversed(range(len(self.shape))))
        if self.layout == "strided":
            return value[..., ::2]
        if self.layout == "rows":
            return value[..., 2:-1]
        if self.layout == "offset":
            return value[1:]
        if self.layout == "channels_last":
            return value.movedim(-1, 1)
        return value.expand(self.shape) if self.layout == "expanded" else value


@dataclass(frozen=True, slots=True)
class Node:
    """A line of the program.

    Attributes:
        text: Python with ``{0}``, ``{1}`` for operands and ``{r}`` for the result, or results with commas between them.
            Without ``{r}`` it is an expression.
        operands: Numbers of values.
        dtypes: Of the results, keys of `DTYPES`.
        is_view: Whether results share memory with an operand, so that they round nothing.
    """

    text: str
    operands: tuple[int, ...]
    dtypes: tuple[str, ...]
    is_view: bool = False

    def line(self, first: int) -> str:
        """Return the line for results from a number on."""
        results = ", ".join(f"v{first + place}" for place in range(len(self.dtypes)))
        text = self.text if "{r}" in self.text else "{r} = " + self.text
        return re.sub(
            r"\{(r|\d+)\}", lambda found: results if found[1] == "r" else f"v{self.operands[int(found[1])]}", text,
        )


@dataclass(frozen=True, slots=True)
class Program:
    """A program.

    Attributes:
        inputs: The values from 0 on.
        nodes: In order; their results are numbered on from the inputs.
        outputs: Numbers of the values that it returns.
        cuts: Numbers of nodes before which another IPU goes on, where it is placed on several.
        is_special: Whether its inputs have special values, of which what is not finite counts, and the signs of zeros.
    """

    inputs: tuple[Given, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[int, ...]
    cuts: tuple[int, ...] = ()
    is_special: bool = False

    def firsts(self) -> list[int]:
        """Return the number of each node's first result, and at the end that of the next value."""
        numbers = [len(self.inputs)]
        for node in self.nodes:
            numbers.append(numbers[-1] + len(node.dtypes))
        return numbers

    def source(self, *, blocks: bool = False, watched: bool = False) -> str:
        """Return the function ``forward`` as Python.

        Args:
            blocks: Whether nodes lie in blocks on IPUs, which `cuts` divide.
            watched: Whether each result that a node rounds is what ``watch(value, dtype)`` makes of it.
        """
        lines, indent, firsts = [], "    ", self.firsts()
        for place, node in enumerate(self.nodes):
            if blocks and (place == 0 or place in self.cuts):
                ipu = sum(cut <= place for cut in self.cuts)
                lines.append(f'    with torchipu.Block("B{ipu}", ipu_id={ipu}):')
                indent = "        "
            lines += [indent + line for line in node.line(firsts[place]).splitlines()]
            if watched and not node.is_view:
                results = [f"v{firsts[place] + k}" for k in range(len(node.dtypes))]
                lines += [f"{indent}{r} = watch({r}, {dtype!r})" for r, dtype in zip(results, node.dtypes, strict=True)]
        names = ", ".join(f"v{number}" for number in range(len(self.inputs)))
        returned = ", ".join(f"v{number}" for number in self.outputs)
        return "\n".join([f"def forward({names}):", *lines, f"    return [{returned}]", ""])

    def function(
        self, *, blocks: bool = False, types: Mapping[str, torch.dtype] = IN_ITS_TYPES,
        watch: Callable[[torch.Tensor, str], torch.Tensor] | None = None,
    ) -> Callable[..., list[torch.Tensor]]:
        """Return ``forward``, which Dynamo can trace."""
        import torchipu

        source = self.source(blocks=blocks, watched=watch is not None)
        name = f"<program {hash(source)}>"
        linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
        space: dict[str, Any] = {"torch": torch, "F": torch.nn.functional, "torchipu": torchipu, **types}
        space["device"] = torch.device  # as torch prints one, and lines of NNSmith's models name it
        space["watch"] = watch
        space["inner"] = _as_it_is if watch is None else functools.partial(watch, dtype="float")
        if watch is not None and not self.is_special:
            space["F"] = DisturbedFunctional(space["inner"])
        exec(compile(source, name, "exec"), space)
        function: Callable[..., list[torch.Tensor]] = space["forward"]
        return function

    def tensors(self) -> list[torch.Tensor]:
        """Return its inputs."""
        return [given.tensor() for given in self.inputs]

    def to_json(self) -> str:
        """Return it as text, a line for each input and node."""
        return json.dumps(dataclasses.asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> Program:
        """Read what `to_json` wrote."""
        data = json.loads(text)
        inputs = tuple(Given(**{**given, "shape": tuple(given["shape"])}) for given in data["inputs"])
        nodes = tuple(
            Node(node["text"], tuple(node["operands"]), tuple(node["dtypes"]), node["is_view"])
            for node in data["nodes"]
        )
        return cls(inputs, nodes, tuple(data["outputs"]), tuple(data["cuts"]), data.get("is_special", False))


def _as_it_is(value: torch.Tensor) -> torch.Tensor:
    """Return what is rounded within a line: a step of a checkpoint."""
    return value


def without_dead(program: Program) -> Program:
    """Return a program without the nodes and inputs that nothing needs; a node that writes in place is needed."""
    firsts = program.firsts()
    needed = set(program.outputs)
    kept: list[int] = []
    for place in reversed(range(len(program.nodes))):
        node = program.nodes[place]
        results = range(firsts[place], firsts[place + 1])
        writes = node.is_view and "_(" in node.text and needed.intersection(node.operands)
        if writes or needed.intersection(results):
            kept.append(place)
            needed.update(node.operands)
    return taken_from(program, sorted(kept), [number for number in range(len(program.inputs)) if number in needed])


def taken_from(program: Program, places: Sequence[int], inputs: Sequence[int]) -> Program:
    """Return the program of some nodes and some inputs, numbered anew; they hold all that they need."""
    firsts = program.firsts()
    numbers = {number: new for new, number in enumerate(inputs)}
    following = len(inputs)
    for place in places:
        for number in range(firsts[place], firsts[place + 1]):
            numbers[number] = following
            following += 1
    nodes = tuple(
        dataclasses.replace(program.nodes[place], operands=tuple(numbers[n] for n in program.nodes[place].operands))
        for place in places
    )
    cuts = tuple(sorted({sum(place < cut for place in places) for cut in program.cuts} - {0, len(places)}))
    return dataclasses.replace(
        program, inputs=tuple(program.inputs[number] for number in inputs), nodes=nodes,
        outputs=tuple(numbers[n] for n in program.outputs), cuts=cuts,
    )
