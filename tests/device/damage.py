"""Kinds of damage to a device program, each at several places."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import count, islice, pairwise
from typing import Any

from torchipu.ir.program import (
    AllReduce,
    Call,
    Copy,
    Executable,
    Execute,
    HostCopy,
    OnIpus,
    Program,
    Repeat,
    Sequence,
    Sync,
    Variable,
    VertexGroup,
    leaves_of,
    parts_of,
)
from torchipu.ir.types import Role

PLACES = 3
"""How many places of a program a kind of damage is done at."""
Damaged = tuple[str, Executable]
"""What was damaged, and the program afterwards."""
Change = Callable[[Any], Program | None]
"""Returns what a step becomes; None to leave it out."""
GONE = Sequence(())


def changed(program: Program, chosen: Callable[[Program], bool], change: Change, place: int) -> Program | None:
    """Return a program whose n-th chosen step is changed, or None if it has fewer."""
    numbers = count()
    found = False

    def walk(part: Program) -> Program:
        nonlocal found
        if chosen(part) and next(numbers) == place:
            found = True
            return change(part) or GONE
        match part:
            case Sequence(body=body):
                return Sequence(tuple(map(walk, body)))
            case OnIpus(bodies=bodies):
                return OnIpus(tuple(map(walk, bodies)))
            case Repeat(count=trips, body=body):
                return Repeat(trips, walk(body))
        return part

    after = walk(program)
    return after if found else None


def steps(
    chosen: Callable[[Program], bool], change: Change, *, skips_first: bool = False,
) -> Callable[[Executable], Iterator[Damaged]]:
    """Return a kind of damage to steps of functions and of the main program.

    Args:
        chosen: Which steps.
        change: What they become.
        skips_first: Leave the first step of a function alone: what is before it makes up for it.
    """

    def damage(executable: Executable) -> Iterator[Damaged]:
        def matters(step: Program) -> bool:
            return chosen(step) and step not in spared and not _is_nothing(step, executable)

        for name, program in (*executable.functions.items(), ("main", executable.programs["main"])):
            spared = program.body[:1] if skips_first and isinstance(program, Sequence) else ()
            for place in range(PLACES):
                after = changed(program, matters, change, place)
                if after is None:
                    break
                what = f"{name}, place {place}"
                if name == "main":
                    yield what, replace(executable, programs={"main": after})
                else:
                    yield what, replace(executable, functions={**executable.functions, name: after})

    return damage


def _is_nothing(step: Program, executable: Executable) -> bool:
    """Whether a step runs nothing: the functions that it calls are empty."""
    if isinstance(step, Call):
        return all(isinstance(leaf, Sequence) for leaf in leaves_of(executable.functions[step.function]))
    return isinstance(step, (Sequence, OnIpus)) and all(_is_nothing(part, executable) for part in parts_of(step))


def variables(chosen: Callable[[Variable], bool], change: Callable[[Variable], Variable]) -> Any:
    """Return a kind of damage to variables: every use becomes that of another one."""
    from torchipu.device.locations.uses import over_others

    def damage(executable: Executable) -> Iterator[Damaged]:
        for variable in filter(chosen, executable.variables):
            other = change(variable)
            functions = {name: over_others(one, {variable: other}) for name, one in executable.functions.items()}
            everything = tuple(other if one is variable else one for one in executable.variables)
            yield f"%{variable.name}", replace(executable, functions=functions, variables=everything)

    return damage


# ---------------------------------------------------------------------- what is chosen
def is_a(*kinds: type, **facts: Any) -> Callable[[Program], bool]:
    def chosen(step: Program) -> bool:
        return isinstance(step, kinds) and all(getattr(step, name) == value for name, value in facts.items())

    return chosen


def is_link(step: Program) -> bool:
    return isinstance(step, Copy) and step.src.ipu != step.dst.ipu


def multiplies(step: Program) -> bool:
    """Whether a step is the set of a product that multiplies, not one that lays an operand out or adds up."""
    return computes("addmm", "mm")(step) and any(
        group.codelet.startswith("poplin::ConvPartial")
        for group in step.compute_set.groups  # type: ignore[attr-defined]
    )


def computes(*kinds: str) -> Callable[[Program], bool]:
    return lambda step: isinstance(step, Execute) and step.compute_set.op.kind in kinds


def is_update(step: Program) -> bool:
    return isinstance(step, Call) and step.function.startswith("U")


def is_of_micro_batch(step: Program) -> bool:
    return isinstance(step, Call) and step.micro_batch is not None and not step.function.endswith(".send")


def is_send(step: Program) -> bool:
    return isinstance(step, Call) and step.function.endswith(".send")


def accumulates(step: Program) -> bool:
    return isinstance(step, Call) and step.function[-1:] == "B"


def is_between_ipus(step: Program) -> bool:
    return isinstance(step, Sync) and step.scope == "replica"


def is_turn_of_one(step: Program) -> bool:
    """Whether a cell runs the forward and then the backward of a micro-batch."""
    parts = parts_of(step)
    found = {part.micro_batch for part in parts if isinstance(part, Call)}
    return isinstance(step, Sequence) and len(parts) > 1 and len(found) == 1 and all(isinstance(p, Call) for p in parts)


def calls(prefix: str) -> Callable[[Program], bool]:
    return lambda step: isinstance(step, Call) and step.function.startswith(prefix)


def is_remote(*, to_device: bool) -> Callable[[Program], bool]:
    return lambda step: (
        isinstance(step, HostCopy) and step.stream.startswith("remote.") and step.to_device is to_device
    )


def is_stream(*, to_device: bool) -> Callable[[Program], bool]:
    return lambda step: (
        isinstance(step, HostCopy) and not step.stream.startswith("remote.") and step.to_device is to_device
    )


# ---------------------------------------------------------------------- what it becomes
def dropped(step: Program) -> None:
    return None


def twice(step: Program) -> Program:
    return Sequence((step, Sync("ipu"), step))


def twice_at_once(step: Program) -> Program:
    return Sequence((step, step))


def turned_round(copy: Copy) -> Program:
    return replace(copy, src=copy.dst, dst=copy.src)


def of_next(call: Call) -> Program:
    assert call.micro_batch is not None
    return replace(call, micro_batch=call.micro_batch + 1)


def of_first(call: Call) -> Program | None:
    return replace(call, micro_batch=0) if call.micro_batch else replace(call, micro_batch=1)


def over(step: Execute, change: Callable[[Mapping[str, Variable]], dict[str, Variable]]) -> Program:
    groups: tuple[VertexGroup, ...] = tuple(replace(g, fields=change(g.fields)) for g in step.compute_set.groups)
    return Execute(replace(step.compute_set, groups=groups))


def with_operands_swapped(step: Execute) -> Program:
    def change(fields: Mapping[str, Variable]) -> dict[str, Variable]:
        given = [name for name in fields if not name.startswith("out")]
        turned = {name: fields[other] for name, other in zip(given, given[1:] + given[:1], strict=True)}
        return {**fields, **turned}

    return over(step, change)


def with_a_result_lost(step: Execute) -> Program:
    def change(fields: Mapping[str, Variable]) -> dict[str, Variable]:
        lost = replace(fields["out"], name=f"{fields['out'].name}.lost")
        return {**fields, "out": lost}

    return over(step, change)


def on_another_ipu(step: Execute) -> Program:
    def change(fields: Mapping[str, Variable]) -> dict[str, Variable]:
        first = next(iter(fields))
        return {**fields, first: replace(fields[first], ipu=fields[first].ipu + 1)}

    return over(step, change)


def another_number(step: Execute) -> Program:
    groups = tuple(replace(group, number=group.number + 1) for group in step.compute_set.groups)
    return Execute(replace(step.compute_set, groups=groups))


def back_to_front(step: Sequence) -> Program:
    return Sequence(tuple(reversed(step.body)))


# ---------------------------------------------------------------------- the kinds
def overlapping(executable: Executable) -> Iterator[Damaged]:
    """Let two variables that are live together lie on the same bytes."""
    lasting = [v for v in executable.variables if v.role.is_state and not v.off_chip and v.num_elements > 1]
    for one, other in pairwise(lasting):
        if one.ipu == other.ipu and set(one.mapping.tiles) & set(other.mapping.tiles):
            yield f"%{one.name} on %{other.name}", replace(
                executable, addresses={**executable.addresses, one.name: executable.addresses[other.name]},
            )


def with_no_host_sync(executable: Executable) -> Iterator[Damaged]:
    """Remove all syncs with the host of a function."""
    for name, program in executable.functions.items():
        body = program.body if isinstance(program, Sequence) else ()
        rest = tuple(step for step in body if not (isinstance(step, Sync) and step.scope == "host"))
        if len(rest) < len(body):
            yield name, replace(executable, functions={**executable.functions, name: Sequence(rest)})


def on_several_ipus(damage: Callable[[Executable], Iterator[Damaged]]) -> Callable[[Executable], Iterator[Damaged]]:
    """Leave programs of one IPU alone."""
    return lambda executable: damage(executable) if executable.num_ipus > 1 else iter(())


def unseen(executable: Executable) -> Iterator[Damaged]:
    """Forget what stands between a variable and an operand that is a view of it."""
    used = {
        tensor for program in executable.functions.values() for step in _executes(program)
        for group in step.compute_set.groups for tensor in group.op.inputs
    }
    for tensor, op in executable.views.items():
        if tensor in used and op.kind in ("t", "transpose", "permute"):
            views = {other: made for other, made in executable.views.items() if other is not tensor}
            yield f"%{tensor.name}", replace(executable, views=views)


def _executes(program: Program) -> Iterator[Execute]:
    return (step for step in leaves_of(program) if isinstance(step, Execute))


IS_TURNED = ("addmm", "mm", "threshold_backward", "gelu_backward")
KINDS: dict[str, Callable[[Executable], Iterator[Damaged]]] = {
    "a send is dropped": steps(is_link, dropped),
    "a send goes the other way": steps(is_link, turned_round),
    "what is sent is not called": steps(is_send, dropped),
    "what is sent is that of the next micro-batch": steps(is_send, of_next),
    "a cycle is left out": steps(is_a(OnIpus), dropped),
    "a sync before compute is removed": steps(is_a(Sync, scope="ipu"), dropped, skips_first=True),
    "a function does not wait for the host": with_no_host_sync,
    "a sync of all IPUs is removed": on_several_ipus(steps(is_between_ipus, dropped)),
    "a stash is one too short": variables(lambda v: v.depth > 1, lambda v: replace(v, depth=v.depth - 1)),
    "a stash has one slot": variables(lambda v: v.depth > 2, lambda v: replace(v, depth=1)),
    "addresses overlap": overlapping,
    "a compute set is dropped": steps(is_a(Execute), dropped),
    "a compute set runs twice": steps(computes(*IS_TURNED), twice_at_once),
    "compute sets of an op are out of order": steps(is_a(Execute), another_number),
    "operands are swapped": steps(multiplies, with_operands_swapped),
    "a result goes astray": steps(is_a(Execute), with_a_result_lost),
    "an operand lies on another IPU": steps(is_a(Execute), on_another_ipu),
    "a view is not seen": unseen,
    "a partial is not added": steps(computes("accumulate"), dropped),
    "a partial is added twice": steps(computes("accumulate"), twice),
    "an accumulator is not emptied": steps(computes("fill_zero"), dropped),
    "an update is dropped": steps(computes("sgd", "adamw"), dropped),
    "an update is made twice": steps(computes("sgd", "adamw"), twice),
    "updates are not counted": steps(computes("increment"), dropped),
    "an IPU is not updated": steps(is_update, dropped),
    "an IPU is updated twice": steps(is_update, twice),
    "replicas are not added up": steps(calls("R"), dropped),
    "replicas are added up twice": steps(calls("R"), twice),
    "a sum over replicas is dropped": steps(is_a(AllReduce), dropped),
    "a sum over replicas is a mean": steps(is_a(AllReduce, kind="all_reduce"), lambda s: replace(s, mean=not s.mean)),
    "one gradient is not summed": steps(
        lambda s: isinstance(s, AllReduce) and len(s.variables) > 1, lambda s: replace(s, variables=s.variables[1:]),
    ),
    "replicas sum in groups": steps(is_a(AllReduce, kind="all_reduce"), lambda s: replace(s, replicas=1)),
    "shares are not gathered": steps(is_a(AllReduce, kind="all_gather"), dropped),
    "sums are not scattered": steps(
        is_a(AllReduce, kind="reduce_scatter"), lambda s: replace(s, kind="all_gather"),
    ),
    "an input is not read": steps(is_stream(to_device=True), dropped),
    "an input is read twice": steps(is_stream(to_device=True), twice_at_once),
    "a result is not written": steps(is_stream(to_device=False), dropped),
    "a result is written twice": steps(is_stream(to_device=False), twice_at_once),
    "a load is dropped": steps(is_remote(to_device=True), dropped),
    "a store is dropped": steps(is_remote(to_device=False), dropped),
    "a load is of another buffer": steps(
        is_remote(to_device=True), lambda s: replace(s, stream=f"{s.stream}.other"),
    ),
    "a micro-batch is left out": steps(is_of_micro_batch, dropped),
    "a micro-batch runs twice": steps(accumulates, twice),
    "a micro-batch takes the place of another": steps(is_of_micro_batch, of_first),
    "legs run in the wrong order": steps(is_turn_of_one, back_to_front),
    "an iteration too many": steps(lambda s: isinstance(s, Repeat), lambda s: replace(s, count=s.count + 1)),
    "an iteration too few": steps(lambda s: isinstance(s, Repeat), lambda s: replace(s, count=s.count - 1)),
    "weights are not loaded": variables(
        lambda v: v.role is Role.WEIGHT, lambda v: replace(v, name=f"{v.name}.elsewhere"),
    ),
}


def some(damaged: Iterator[Damaged]) -> list[Damaged]:
    """Return the first few places."""
    return list(islice(damaged, 4 * PLACES))
