"""A program for each seed, tried on eager PyTorch while it grows: what eager refuses never gets in."""

from __future__ import annotations

import dataclasses
import random
import warnings
from collections.abc import Callable, Mapping

import torch

from tests.fuzz.operators import DRAWS, Draw, Value
from tests.fuzz.program import IN_ITS_TYPES, NAMES, Given, Node, Program

LARGEST = 1e3
"""Values beyond it are not used further: products of them would leave the range of halves."""
MOST_ELEMENTS = 4096
LAYOUTS = ("contiguous", "contiguous", "transposed", "strided", "expanded")
SIZES = (1, 2, 3, 4, 5, 7, 8)


def generate(
    seed: int, draws: Mapping[str, tuple[Draw, float]] = DRAWS,
    inputs: Callable[[random.Random], tuple[Given, ...]] | None = None,
) -> Program:
    """Return the program of a seed.

    Args:
        seed: The seed.
        draws: What it is made of, and how often each is taken.
        inputs: Draws its inputs; None for those whose values are drawn at random about zero.
    """
    rng = random.Random(seed)
    while True:
        num_nodes = rng.randint(3, 16)
        program = _grown(rng, (inputs or _inputs)(rng), num_nodes, draws)
        if program is not None and has_gradients(program):
            return program


def _inputs(rng: random.Random) -> tuple[Given, ...]:
    """Draw inputs whose sizes meet: each dimension is one of three sizes."""
    sizes = rng.sample(SIZES, 3)
    if rng.random() < 0.04:
        sizes[0] = 0
    half = rng.random() < 0.25
    inputs = []
    for number in range(rng.randint(2, 5)):
        shape = tuple(rng.choice(sizes) for _ in range(rng.choice((0, 1, 2, 2, 2, 3, 3, 4, 4))))
        dtype = "int" if number and rng.random() < 0.15 else "half" if half and rng.random() < 0.7 else "float"
        layout = rng.choice(LAYOUTS) if shape else "contiguous"
        inputs.append(Given(
            shape, dtype, layout if layout != "expanded" or shape[0] else "contiguous",
            gradient=dtype != "int" and layout != "expanded" and rng.random() < 0.6, bound=rng.randint(1, 9),
            seed=rng.randrange(1 << 30),
        ))
    return tuple(inputs)


def _grown(
    rng: random.Random, inputs: tuple[Given, ...], num_nodes: int, draws: Mapping[str, tuple[Draw, float]],
) -> Program | None:
    is_special = any(given.is_special for given in inputs)
    program = Program(inputs, (), (), is_special=is_special)
    tensors = [given.tensor() for given in inputs]
    values = [Value(number, tensor) for number, tensor in enumerate(tensors)]
    names, weights = list(draws), [weight for _, weight in draws.values()]
    for _ in range(8 * num_nodes):
        if len(program.nodes) == num_nodes:
            break
        call = draws[rng.choices(names, weights)[0]][0](rng, values)
        if call is None:
            continue
        first = program.firsts()[-1]
        node = Node(call.text, tuple(value.number for value in call.operands), ("float",), call.is_view)
        if "{r} = {0}.split(" in call.text:
            node = dataclasses.replace(node, dtypes=("float", "float"))
        results = _results(node, first, {value.number: value.tensor for value in values})
        if results is None:
            continue
        is_view = call.is_view or any(_share(result, value.tensor) for result in results for value in call.operands)
        node = dataclasses.replace(node, dtypes=tuple(NAMES[result.dtype] for result in results), is_view=is_view)
        program = dataclasses.replace(program, nodes=(*program.nodes, node))
        values += [Value(first + place, result) for place, result in enumerate(results)
                   if is_special or _is_usable(result)]
    made = [value for value in values if value.number >= len(inputs)]
    if not made:
        return None
    read = {number for node in program.nodes for number in node.operands}
    ends = [value.number for value in made if value.number not in read] or [made[-1].number]
    outputs = set(rng.sample(ends, min(len(ends), 4)))
    if rng.random() < 0.3:
        outputs.add(rng.choice(made).number)
    cuts = sorted(rng.sample(range(1, len(program.nodes)), min(len(program.nodes) - 1, rng.randint(0, 3))))
    return dataclasses.replace(program, outputs=tuple(sorted(outputs)), cuts=tuple(cuts))


def _results(node: Node, first: int, tensors: dict[int, torch.Tensor]) -> list[torch.Tensor] | None:
    """Run one node; None where eager refuses it or its results are of no use."""
    space = {"torch": torch, "F": torch.nn.functional, **IN_ITS_TYPES, **{f"v{n}": t for n, t in tensors.items()}}
    # What is written in place stays written in the values of the program so far, as it will be when it runs.
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exec(node.line(first), space)
    except (RuntimeError, IndexError, ValueError, TypeError, NotImplementedError):
        return None
    results = [space[f"v{first + place}"] for place in range(len(node.dtypes))]
    tensors_only = all(isinstance(result, torch.Tensor) for result in results)
    if not tensors_only or any(r.dtype not in NAMES or r.numel() > MOST_ELEMENTS or r.dim() > 5 for r in results):
        return None
    return results


def _share(result: torch.Tensor, operand: torch.Tensor) -> bool:
    return result.untyped_storage().data_ptr() == operand.untyped_storage().data_ptr() != 0


def _is_usable(result: torch.Tensor) -> bool:
    if not result.is_floating_point() or not result.numel():
        return True
    return bool(result.detach().isfinite().all()) and float(result.detach().abs().max()) <= LARGEST


def has_gradients(program: Program) -> bool:
    """Whether eager runs the whole program, forward and backward: a value may be written after backward needs it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            differentiate(program.function(), program.tensors())
    except (RuntimeError, ValueError, TypeError, IndexError):
        return False
    return True


@dataclasses.dataclass(slots=True)
class Outcome:
    """What a run gives: values that it returns, gradients of inputs that ask for them, and inputs after it."""

    values: list[torch.Tensor]
    gradients: list[torch.Tensor | None]
    inputs: list[torch.Tensor]

    def named(self) -> list[tuple[str, torch.Tensor | None]]:
        """Return all that is compared, with names for a reader."""
        return [
            *((f"output {place}", value) for place, value in enumerate(self.values)),
            *((f"gradient {place}", value) for place, value in enumerate(self.gradients)),
            *((f"input {place} afterwards", value) for place, value in enumerate(self.inputs)),
        ]


def differentiate(function: Callable[..., list[torch.Tensor]], tensors: list[torch.Tensor]) -> Outcome:
    """Run forward, and backward from all floating results that depend on an input that asks for a gradient."""
    values = list(function(*tensors))
    asking = [tensor for tensor in tensors if tensor.requires_grad]
    reaching = [value for value in values if value.requires_grad]
    gradients: list[torch.Tensor | None] = []
    if asking and reaching:
        tangents = [tangent(value, place) for place, value in enumerate(reaching)]
        gradients = list(torch.autograd.grad(reaching, asking, tangents, allow_unused=True))
    return Outcome([value.detach() for value in values], gradients, [tensor.detach() for tensor in tensors])


def tangent(value: torch.Tensor, place: int) -> torch.Tensor:
    """Return what backward begins with, the same in every element type."""
    generator = torch.Generator().manual_seed(place)
    return torch.randn(value.shape, generator=generator).to(torch.float16).to(value.dtype)
