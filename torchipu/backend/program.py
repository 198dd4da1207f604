"""One compiled graph with the border to torch."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.fx import GraphModule
from torch.utils._python_dispatch import _disable_current_modes

from torchipu import artifacts
from torchipu._kernels.abi import Call
from torchipu.advice.remedies import compile_or_advise
from torchipu.backend.counts import COUNTS
from torchipu.backend.expected import edge_of, expected_of, held_as_pairs
from torchipu.backend.results import (
    Kind,
    Part,
    Piece,
    Result,
    Shown,
    handed_back,
    kept_apart,
    layout_of,
    memory_of,
    parts_of_results,
    pieces_of_gradients,
)
from torchipu.backend.written import stored_over
from torchipu.capture.complex_numbers import complex_placeholders, with_complex_results, without_complex
from torchipu.capture.fx_import import Given, Imported, import_graph
from torchipu.capture.symbols import Symbols
from torchipu.compiler import Compiled
from torchipu.host.agreement import Agreement
from torchipu.host.border import resolved
from torchipu.host.collectives import wait_for
from torchipu.host.complex_pairs import COMPLEX, strides_of_complex
from torchipu.host.executor import GraphExecutor, threads_of_torch
from torchipu.host.generic import TORCH_DTYPES
from torchipu.host.sized_plans import PlansOfCall, SizedPlans
from torchipu.ir.graph import Graph, Op, Tensor, walk_ops
from torchipu.ir.settling import Settling
from torchipu.ir.sizes import Sizes
from torchipu.ir.types import Leg, Role
from torchipu.optable.assertion import is_assertion
from torchipu.optable.collective import is_collective
from torchipu.optable.dead_ops import drop_dead
from torchipu.optable.generic import EFFECT_TOKEN
from torchipu.options import Options
from torchipu.report import profile_of
from torchipu.report.recorder import is_heard, record
from torchipu.target import Target

_NO_EFFECT = torch.empty(0)


def _is_of_the_user(value: Any) -> bool:
    """Whether it is a tensor of a type that extends torch's."""
    return isinstance(value, torch.Tensor) and type(value) not in (torch.Tensor, torch.nn.Parameter)


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a graph of AOT autograd becomes a program.

    Attributes:
        name: Of the program, in reports and dumps.
        leg: Of all ops.
        given: What each placeholder is to the model.
        options: What to emulate.
        target: The machine.
        num_results: How many of the results, from the first, reach the caller; the others are saved for the
            backward. None for all.
        is_frozen: Whether what depends on weights alone is computed once.
        written: By number of a result that of the argument that AOT autograd copies it into.
    """

    name: str
    leg: Leg
    given: Sequence[Given]
    options: Options
    target: Target
    num_results: int | None = None
    is_frozen: bool = False
    written: Mapping[int, int] = field(default_factory=dict)

    def imported(self, module: GraphModule, symbols: Symbols | None = None) -> Imported:
        """Return a graph as one of ours."""
        return import_graph(
            module, name=self.name, given=self.given, leg=self.leg, strict_ops=self.options.strict_ops,
            symbols=symbols,
        )

    def compiled(self, graph: Graph) -> Compiled:
        """Compile a graph for the device, and tell of it whoever wants to know."""
        compiled = compile_or_advise(graph, self.options, self.target)
        COUNTS.device_programs += 1
        if is_heard() or artifacts.is_wanted():
            profile = profile_of(compiled.executable, compiled.cost, compiled.target, compiled.options.io_tiles)
            record(profile, compiled)
            artifacts.emit(profile, compiled)
        return compiled

    def program(self, module: GraphModule, *, is_dynamic: bool) -> Program:
        """Return the program of a graph with static sizes."""
        apart = kept_apart(module, self.num_results)
        complexes = complex_placeholders(module)
        module = without_complex(module)
        imported = self.imported(module)
        compiled = self.compiled(imported.graph)
        COUNTS.programs += 1
        COUNTS.passes += 1
        imported = with_complex_results(imported, module)
        is_inference = self.leg is Leg.FORWARD and self.num_results is None
        parts = parts_of_results(module) if is_inference and not self.written else {}
        shown = [None if fake is None else Shown.of(fake) for fake in imported.result_values]
        given = [node.meta.get("val") for node in module.graph.nodes if node.op == "placeholder"]
        bfloats = frozenset(
            tensor for tensor, fake in zip(imported.placeholders, given, strict=True)
            if isinstance(fake, torch.Tensor) and fake.dtype is torch.bfloat16 and tensor is not None
        )
        pieces = {
            place: Piece(argument, Shown.of(given[argument]), lies)
            for place, argument in self.pieces(module).items() if (lies := shown[place]) is not None
        }
        return Program(imported, compiled.graph, self, shown, handed_back(module, is_dynamic), apart, parts, pieces,
                       bfloats=bfloats, complexes=held_as_pairs(imported, complexes))

    def pieces(self, module: GraphModule) -> dict[int, int]:
        """Return by number the results that only show elements of a gradient that is given, with its place."""
        if self.leg is not Leg.BACKWARD:
            return {}
        return pieces_of_gradients(module, [given.role for given in self.given])


def matters_at_border(op: Op) -> bool:
    """Whether a `Program` looks at an op as imported: at others it looks only after all passes."""
    return bool(op.bodies) or is_collective(op) or _has_effect(op)


def _has_effect(op: Op) -> bool:
    return EFFECT_TOKEN in op.operands


class PlansOfResults:
    """Host plans of a graph with sizes, less some of its outputs.

    Args:
        graph: After all passes, with sizes.
        sizes: These.
    """

    def __init__(self, graph: Graph, sizes: Sizes) -> None:
        self.graph, self.sizes = graph, sizes
        self._made: dict[frozenset[int], SizedPlans] = {}

    def without(self, places: Collection[int]) -> SizedPlans:
        """Return those of the graph without these outputs."""
        key = frozenset(places)
        if key not in self._made:
            graph = drop_dead(_without(self.graph, key)) if key else self.graph
            self._made[key] = SizedPlans(graph, self.sizes)
        return self._made[key]


def _without(graph: Graph, places: Collection[int]) -> Graph:
    """Return a graph without some of its outputs."""
    return replace(graph, outputs=tuple(tensor for place, tensor in enumerate(graph.outputs) if place not in places))


class Program:
    """One compiled graph with the border to torch: order, dtypes, strides and aliases as torch expects them.

    Args:
        imported: The graph as imported, of which ops that do not matter at the border may be missing.
        graph: The same graph after all passes.
        recipe: Whence it came.
        shown: How torch expects each result to lie; None for one that is no tensor.
        kinds: What each result is.
        apart: Places of saved results that must share no memory with what the caller has.
        parts: By number the results that lie in the memory of another one.
        pieces: By number the results that lie in the memory of an argument, where they may.
        sized: The plans of the graph after all passes as it was before its sizes were known, and what these are; its
            ops may be those with sizes then.
        bfloats: Inputs of the graph as imported that come as bfloat16.
        complexes: Inputs of the graph as imported, pairs ``[..., 2]``, that come as complex numbers of their type.
    """

    def __init__(
        self, imported: Imported, graph: Graph, recipe: Recipe, shown: Sequence[Shown | None], kinds: Sequence[Kind],
        apart: frozenset[int], parts: Mapping[int, Part] | None = None, pieces: Mapping[int, Piece] | None = None,
        sized: tuple[PlansOfResults, Sequence[Any], Settling] | None = None, bfloats: frozenset[Tensor] = frozenset(),
        complexes: frozenset[Tensor] = frozenset(),
    ) -> None:
        self.parts, pieces = parts or {}, pieces or {}
        options, num_results = recipe.options, recipe.num_results
        # What the caller has stays as it was where an assertion ends the run.
        stays = recipe.is_frozen or any(map(is_assertion, walk_ops(graph.ops)))
        frozen = [tensor for tensor in graph.inputs if recipe.is_frozen and tensor.role is Role.WEIGHT]
        computed = {
            value for place, value in enumerate(imported.results) if isinstance(value, Tensor) and place not in pieces
        }
        shown_alone = {index for index, tensor in enumerate(imported.graph.outputs) if tensor not in computed}
        if shown_alone:
            imported = replace(imported, graph=_without(imported.graph, shown_alone))
            graph = _without(graph, shown_alone)
            if sized is None:
                graph = drop_dead(graph)
        number = {tensor: index for index, tensor in enumerate(imported.graph.outputs)}
        is_visible = [num_results is None or position < num_results for position in range(len(shown))]
        layouts = [layout_of(lies, is_view=kind is Kind.VIEW) for lies, kind in zip(shown, kinds, strict=True)]
        expected = expected_of(imported, layouts, kinds, num_results, recipe.written)
        over = {} if stays else stored_over(imported, graph, recipe.written, shown)
        is_observed = options.floating_point_exceptions or options.statistics
        self.edge = edge_of(
            graph, expected, over, bfloats, complexes, has_sizes=sized is not None, is_observed=is_observed,
            are_gradients=recipe.leg is Leg.BACKWARD,
        )
        self.executor = GraphExecutor(
            graph, imported.constants, threads=options.host_threads or threads_of_torch(),
            seed=options.seed, frozen=frozen, traps=options.floating_point_exceptions, counts=options.statistics,
            is_strict=options.strict_numerics, is_alone=True,
            sized=None if sized is None else PlansOfCall(sized[0].without(shown_alone), *sized[1:]), edge=self.edge,
        )
        self.written = recipe.written
        place = {tensor: index for index, tensor in enumerate(imported.placeholders) if tensor is not None}
        self.arguments = [place[tensor] for tensor in self.executor.arguments]
        self.foreign = [
            place[tensor] for tensor in self.executor.arguments
            if tensor.role is not Role.ACTIVATION or tensor in complexes
        ]
        self.awaited = [place[tensor] for tensor in imported.awaited if tensor in place]
        agreement = Agreement(imported.graph)
        self.agreement = agreement if agreement.ops else None
        self.has_effects = any(map(_has_effect, walk_ops(imported.graph.ops)))
        self.results: list[Result] = []
        for position, (value, layout, visible) in enumerate(zip(imported.results, layouts, is_visible, strict=True)):
            away = position in apart
            if not isinstance(value, Tensor):
                self.results.append(Result(constant=value))
            elif position in pieces:
                self.results.append(Result(piece=pieces[position]))
            elif value in number:
                self.results.append(Result(output=number[value], visible=visible, apart=away, fake=layout))
            elif value in place:
                owned = visible and kinds[position] is not Kind.INPUT
                in_parts = value in complexes and layout is not None and not layout.dtype.is_complex
                self.results.append(Result(
                    argument=place[value], in_parts=in_parts, visible=owned, apart=away, fake=layout,
                ))
            else:
                self.results.append(Result(constant=imported.constants[value].clone(), visible=visible))
        self.pieces = [place for place, result in enumerate(self.results) if result.piece is not None]
        self.returned_as_made = None if self.parts else self._find_returned_as_made(graph)
        self.quick: Call | None = None
        """Does what most calls are, once one of them has made the plan; returns None where there is more to do."""
        self._was_quick_sought = False

    @property
    def num_bytes(self) -> int:
        """Memory that it holds, about: of its plans, and of the graph that they were made from."""
        return self.executor.num_bytes

    def _find_returned_as_made(self, graph: Graph) -> frozenset[int] | None:
        """Return the numbers of the outputs with memory of their own; None if any result may need a copy or a cast."""
        visible = [result for result in self.results if result.visible]
        numbers = [result.output for result in visible if result.output is not None]
        if len(set(numbers)) < len(visible):
            return None
        apart = [result.output for result in self.results if result.apart]
        if not set(numbers).isdisjoint(apart):
            return None
        away = [number for number in apart if number is not None]
        if len(away) < len(apart):
            return None
        for result, number in zip(visible, numbers, strict=True):
            layout = result.fake
            dtype = torch.bfloat16 if number in self.edge.bfloat_outputs else TORCH_DTYPES[graph.outputs[number].dtype]
            strides = self.edge.strides.get(number)
            if number in self.edge.complex_outputs:
                dtype, strides = COMPLEX[dtype], None if strides is None else strides_of_complex(strides)
            if layout is not None and not layout.is_as_made(dtype, strides):
                return None
        return frozenset([*numbers, *away])

    def _find_quick(self) -> Call | None:
        """Return a call of the plan for tensors as they lie, where a call takes that alone."""
        self._was_quick_sought = True
        if self.has_effects or self.agreement is not None or self.awaited:
            return None
        if any(result.constant is not None or result.in_parts for result in self.results):
            return None
        return self.executor.repeated(self.arguments, [
            (result.output, result.argument) for result in self.results
        ])

    def run(self, arguments: list[Any]) -> list[Any]:
        """Run on a list of arguments, which is emptied."""
        if self.quick is not None and (found := self.quick(arguments)) is not None:
            for place in self.pieces:
                found[place] = self.results[place].pick(arguments, ())
            arguments.clear()
            return found
        if torch._C._len_torch_dispatch_stack() and any(map(_is_of_the_user, arguments)):
            # At the first call AOT autograd watches operators, and refuses all of tensors of types it does not know.
            with _disable_current_modes():
                return self._run(arguments)
        return self._run(arguments)

    def _run(self, arguments: list[Any]) -> list[Any]:
        values = list(arguments)
        arguments.clear()
        if self.has_effects:  # torch hands None for the token of effects
            values = [_NO_EFFECT if value is None else value for value in values]
        for index in self.awaited:
            values[index] = wait_for(values[index])
        if self.agreement is not None:
            self.agreement.reach()
        outputs = self.executor.as_they_lie([values[index] for index in self.arguments])
        given = values
        if outputs is None:
            values = list(given)  # what is handed back is the caller's, and not the pairs of its complex numbers
            for index in self.foreign:
                values[index] = resolved(values[index])
            outputs = self.executor(*(values[index] for index in self.arguments))
        if self.returned_as_made is not None and self.returned_as_made.isdisjoint(self.executor.shared_results):
            if not self._was_quick_sought:
                self.quick = self._find_quick()
            return [result.pick(given, outputs) for result in self.results]
        taken = {memory_of(value) for value in given if isinstance(value, torch.Tensor)}
        returned = []
        for place, result in enumerate(self.results):
            value = result.pick(given, outputs)
            if place in self.written and value is given[self.written[place]]:
                returned.append(value)  # it is what AOT autograd is to copy it into
                continue
            if result.visible and isinstance(value, torch.Tensor):
                value = result.own(value, taken, self.executor.border_memory)
            elif result.apart and memory_of(value) in taken:
                value = value.clone()
            returned.append(value)
        for place, part in self.parts.items():
            returned[place] = part.of(returned[part.whole])
        return returned
