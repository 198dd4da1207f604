"""Whatever is wrong with the vertices of a compute set, the tiles notice, and the op is named."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Members
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

import torchipu
from tests.device.tiles.vertex_damage import OF_FIELDS, OF_VERTICES
from tests.device.trained import Classifier, Trained
from torchipu.checking.differences import DifferenceError
from torchipu.checking.tile_differences import judging
from torchipu.device.stores import Place
from torchipu.device.tiles.machine import TileMachine
from torchipu.device.tiles.prepared import PreparedSet
from torchipu.errors import DeviceProgramError
from torchipu.ir.graph import Op, Tensor
from torchipu.ir.mapping import TileMapping
from torchipu.ir.program import Executable, Execute, Program, Repeat, Sequence, Variable, VertexGroup, leaves_of
from torchipu.ir.types import Role
from torchipu.ir.vertices import VertexSet

HARMLESS = "rounding alone"
ORDER = {
    "elements are read in another order", "a copy on the tile brings the element beside",
    "an exchange brings the element beside",
}
"""Harmless where the terms of a sum change places, or an exponential is taken off another largest value."""
PLACES = 3
"""How many compute sets of a program each kind of damage is done to."""


def images(*layers: torch.nn.Module) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    return Classifier(*layers), (torch.randn(4, 3, 10, 10), torch.randint(0, 5, (4,)))


def rows(*layers: torch.nn.Module) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    return Classifier(*layers), (torch.randn(12, 70), torch.randint(0, 5, (12,)))


nn = torch.nn
GRAPHS = {
    "elements": lambda: rows(nn.GELU(), nn.Linear(70, 5), nn.Tanh()),
    "products": lambda: rows(nn.Linear(70, 90), nn.ReLU(), nn.Linear(90, 5)),
    "norms": lambda: rows(nn.Linear(70, 40), nn.LayerNorm(40), nn.Softmax(-1), nn.Linear(40, 5)),
    "convolutions": lambda: images(nn.Conv2d(3, 8, 3, padding=1, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(200, 5)),
    "pools": lambda: images(nn.Conv2d(3, 4, 3), nn.MaxPool2d(2), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(64, 5)),
}


@functools.cache
def graph(name: str) -> Trained:
    torch.manual_seed(5)
    model, batch = GRAPHS[name]()
    options = torchipu.Options(gradient_accumulation=1)
    return Trained(model, partial(torch.optim.SGD, lr=0.1), options, batch)


class Recording(TileMachine):
    """Keeps what is prepared of each compute set."""

    made: dict[VertexGroup, list[PreparedSet]]

    def _run_set(
        self, group: VertexGroup, sets: Members[PreparedSet | None], fields: Mapping[Tensor, Variable], place: Place,
    ) -> None:
        made = sets[0]
        if made is not None and made not in self.made.setdefault(group, []):
            self.made[group].append(made)
        super()._run_set(group, sets, fields, place)


@functools.cache
def undamaged(name: str) -> tuple[dict[object, np.ndarray], dict[VertexGroup, list[PreparedSet]]]:
    """Return what the program leaves, and what is prepared of its compute sets."""
    machine = graph(name).tile_machine()
    machine.__class__ = Recording
    assert isinstance(machine, Recording)
    machine.made = {}
    return left_by(machine), machine.made


def left_by(machine: TileMachine) -> dict[object, np.ndarray]:
    machine.run()
    return {**machine.states(), **machine.results}


def tiled_groups(executable: Executable) -> list[VertexGroup]:
    """Return the groups that have vertices, one of each op target and set: those that no zeros pass through."""
    found: dict[tuple[str, int], VertexGroup] = {}
    for function in executable.functions.values():
        for step in leaves_of(function):
            for group in step.compute_set.groups if isinstance(step, Execute) else ():
                is_state = any(tensor.role is Role.ACCUMULATOR for tensor in group.op.inputs)
                if group.tiling is not None and not is_state:
                    found.setdefault((group.op.target, group.number), group)
    return list(found.values())


def exchanged(program: Program, before: VertexGroup, after: VertexGroup) -> Program:
    """Return a program with another vertex group."""
    match program:
        case Sequence(body=body):
            return Sequence(tuple(exchanged(part, before, after) for part in body))
        case Repeat(body=body):
            return replace(program, body=exchanged(body, before, after))
        case Execute(compute_set=compute_set):
            groups = tuple(after if group is before else group for group in compute_set.groups)
            return Execute(replace(compute_set, groups=groups))
    return program


def of_vertices(name: str, kind: str) -> Iterator[tuple[Op, TileMachine]]:
    run = graph(name)
    for group in tiled_groups(run.executable):
        tiling = group.tiling
        assert tiling is not None
        changes: list[bool] = []

        def damaged(op: Op, runs: TileMapping, part: int, tiling: Any = tiling, seen: list[bool] = changes) -> Any:
            vertices: VertexSet | None = tiling(op, runs, part)
            changed = None if vertices is None or seen else OF_VERTICES[kind](vertices)
            if changed is not None:
                seen.append(True)
            return changed if changed is not None else vertices

        if damaged(group.op, group.runs, 0) is not None and changes:
            changes.clear()
            other = replace(group, tiling=damaged)
            functions = {key: exchanged(one, group, other) for key, one in run.executable.functions.items()}
            yield group.op, run.tile_machine(replace(run.executable, functions=functions))


class Damaged(TileMachine):
    """Does damage to what is moved for one compute set."""

    chosen: VertexGroup
    kind: str
    is_done = False

    def _run_set(
        self, group: VertexGroup, sets: Members[PreparedSet | None], fields: Mapping[Tensor, Variable], place: Place,
    ) -> None:
        if group is self.chosen and sets[0] is not None:
            changed = OF_FIELDS[self.kind](sets[0], self.tile_bytes)
            self.is_done |= changed is not None
            sets = [changed or sets[0]] * len(sets)
        super()._run_set(group, sets, fields, place)


def of_fields(name: str, kind: str) -> Iterator[tuple[Op, TileMachine]]:
    run = graph(name)
    made = undamaged(name)[1]
    for group in tiled_groups(run.executable):
        machine = run.tile_machine()
        if all(OF_FIELDS[kind](one, machine.tile_bytes) is None for one in made.get(group, ())):
            continue  # nothing of this set is moved so
        machine.__class__ = Damaged
        assert isinstance(machine, Damaged)
        machine.chosen, machine.kind = group, kind
        yield group.op, machine


def noticed(op: Op, machine: TileMachine, wanted: Mapping[object, np.ndarray]) -> str:
    """Say how the damage shows, with the op that is named; empty if it does not show."""
    judging(machine)
    try:
        found = left_by(machine)
    except DeviceProgramError as error:
        return str(error)
    except DifferenceError as error:
        return str(error.difference)
    assert not isinstance(machine, Damaged) or machine.is_done
    differing = [key for key, value in wanted.items() if not np.array_equal(found[key], value, equal_nan=True)]
    if differing and all(np.allclose(found[key], wanted[key], 1e-4, 1e-6) for key in differing):
        return HARMLESS  # terms in another order, or another number taken off before an exponential
    return f"{differing} differ" if differing else ""


@pytest.mark.parametrize("kind", [*OF_VERTICES, *OF_FIELDS])
def test_damage_to_vertices_is_noticed(kind: str, is_thorough: bool) -> None:
    kinds, names = [*OF_VERTICES, *OF_FIELDS], list(GRAPHS)
    damage, done, first = of_vertices if kind in OF_VERTICES else of_fields, 0, kinds.index(kind) % len(names)
    for name in names[first:] + names[:first]:
        places = 0
        for op, machine in damage(name, kind):
            text = noticed(op, machine, undamaged(name)[0])
            if text == HARMLESS or not text:
                assert kind in ORDER or text, f"{kind} in {op.target} of {name!r} shows nowhere"
                continue
            assert op.kind in text, f"{kind} in {op.target} of {name!r} is blamed on another op: {text}"
            places += 1
            if places == (PLACES if is_thorough else 1):
                break
        done += places
        if done and not is_thorough:
            break
    assert done, f"no compute set of these can be damaged so: {kind}"


