"""How far a result may be off, without a tolerance for each operator.

A result that eager's own agrees with to `torch.testing.assert_close` is right. For others the program is run in
float64, where its inputs and each line's result are disturbed by as much as the element type rounds: how far that moves
a result is how well the program determines it. What a line reads counts as well as what it gives, since a sum of
products that nearly cancel rounds within as if its operands were a little off. A result passes that is no further from
float64 than a few times that, or than a few times eager's own. A comparison that a rounding turns over moves far and
decides nothing; an error of an index does not.

Programs on special values are made of what rounds little or nothing: what is not finite has to be where eager has it,
and zeros have its signs. Where such a program rounds all the same, and finite elements differ, each of them is held to
how far it moves when results that are not short binary fractions are disturbed: ties of what is exact stay ties.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from tests.fuzz.doors import DOORS, through_torch
from tests.fuzz.generate import Outcome, differentiate
from tests.fuzz.program import IN_DOUBLE, Program
from tests.raised import first_line, our_error
from torchipu.errors import DeviceProgramError, InternalError, VerifyError

EPSILON = {"float": 2.0**-22, "half": 2.0**-10}
DISTURBED_RUNS = 6
FACTOR = 16.0
"""An operator of several steps, such as attention, rounds within itself what is disturbed only around it."""
LEAST = {torch.float32: 2e-6, torch.float16: 4e-3}
"""Of the largest element: eight units in the last place, and a little for sums."""
CANCELLED, OF_CANCELLED = 1e-9, 1e-3
"""Parts of the largest gradient, or of 1 where that is less: one of less is 0 but for rounding, as that of a shift
before a norm; it may be so far off, by how the operators round within. It may also be as far off as eager is in any
such gradient, of which there may be no others: which of them roundings hit is chance."""
EXACT_PARTS = 64.0
"""A multiple of one part in so many is nothing that rounding has made."""
SPECIAL_CLOSE = {torch.float32: 1e-4, torch.float16: 1e-2}
"""Of each element among special values, where what is looked for is far off; eager's own GELU of -3 has four digits."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of a program.

    Attributes:
        word: ``"ok"``, ``"refused"`` (a clear error of torchipu's own), ``"wrong"``, ``"error"`` (any other exception),
            ``"torchs"`` (the graphs that torch makes for any compiler are wrong as well), or ``"undecided"`` where
            eager itself fails.
        detail: What differs, or the error's first line.
    """

    word: str
    detail: str = ""

    @property
    def is_failure(self) -> bool:
        """Whether it is a defect."""
        return self.word in ("wrong", "error")


def judge(program: Program, door: str) -> Verdict:
    """Run a program through a door and through eager, and compare."""
    verdict = _judged(program, door)
    if verdict.is_failure and _fails_without_us(program, door):
        return Verdict("torchs", verdict.detail)
    return verdict


def _fails_without_us(program: Program, door: str) -> bool:
    try:
        returned = through_torch(program, dynamo=door in ("dynamo", "autograd"))
    except Exception:
        return True
    return compare(program, "backend", returned, expected_of(program, "backend")).is_failure


def _judged(program: Program, door: str) -> Verdict:
    try:
        expected = expected_of(program, door)
    except Exception as error:
        return Verdict("undecided", first_line(error))
    try:
        returned = DOORS[door][0](program)
    except Exception as error:
        ours = our_error(error)
        if ours is not None and not isinstance(ours, (DeviceProgramError, InternalError, VerifyError)):
            return Verdict("refused", f"{type(ours).__name__}: {first_line(ours)}")
        return Verdict("error", f"{type(error).__name__}: {first_line(error)}")
    finally:
        torch._dynamo.reset()
    return compare(program, door, returned, expected)


def expected_of(
    program: Program, door: str, types: dict[str, torch.dtype] | None = None, seed: int | None = None,
) -> Outcome:
    """Return what eager PyTorch gives for what a door computes, in float64 where types are given.

    Args:
        program: The program.
        door: Through which it goes: a training returns its loss, and takes the sum of all outputs as such.
        types: What the program's own casts mean; inputs of floating point are float64 then.
        seed: Of the disturbance; None for none.
    """
    watch = None if types is None else _Disturbance(seed, keeps_exact=program.is_special)
    function = program.function(types=types, watch=watch) if types else program.function()
    tensors = program.tensors() if watch is None else [_in_double(tensor, watch) for tensor in program.tensors()]
    if door in ("steps", "tiles"):
        with torch.no_grad():
            tensors = [tensor.detach() for tensor in tensors]
            return Outcome(function(*tensors), [], [])
    if door == "training":
        kept = [place for place, given in enumerate(program.inputs) if given.kept]
        return _trained(function, tensors, kept)
    return differentiate(function, tensors)


def _trained(function: object, tensors: list[torch.Tensor], kept: list[int]) -> Outcome:
    asking = [tensor for tensor in tensors if tensor.requires_grad]  # what a weight is written into would be among them
    values = function(*tensors)  # type: ignore[operator]
    terms = [
        ((value if value.dtype == torch.float64 else value.float()) * (place + 1)).sum()
        for place, value in enumerate(values) if value.is_floating_point()
    ]
    loss = torch.stack([term.to(terms[0].dtype) for term in terms]).sum() if terms else torch.zeros(())
    if not asking or not loss.requires_grad:
        raise RuntimeError("nothing to train")
    found = torch.autograd.grad(loss, asking, allow_unused=True)
    gradients = [torch.zeros_like(t) if g is None else g for g, t in zip(found, asking, strict=True)]
    kept_after = [tensors[place].detach() for place in kept]
    return Outcome([*(value.detach() for value in values), loss.detach()], list(gradients), kept_after)


class _Disturbance:
    """Changes a value, and with it what comes back through it, as rounding to its element type might."""

    def __init__(self, seed: int | None, *, keeps_exact: bool = False) -> None:
        self._generator = None if seed is None else torch.Generator().manual_seed(seed)
        self._keeps_exact = keeps_exact

    def __call__(self, value: torch.Tensor, dtype: str) -> torch.Tensor:
        if self._generator is None or dtype not in EPSILON:
            return value
        noise = 2 * torch.rand(value.shape, generator=self._generator, dtype=torch.float64) - 1
        disturbed = value * (1 + EPSILON[dtype] * noise)
        if not self._keeps_exact:
            return disturbed
        parts = value.detach() * EXACT_PARTS
        return torch.where(parts.isfinite() & (parts != parts.round()), disturbed, value)


def _in_double(tensor: torch.Tensor, disturbance: _Disturbance) -> torch.Tensor:
    """Return an input in float64, disturbed as float32 is: within an operator sums of halves are as long."""
    if not tensor.is_floating_point():
        return tensor
    # The strides stay: what a program writes into a view reaches the same elements.
    is_repeated = 0 in tensor.stride() and tensor.numel() > 0
    values = disturbance((tensor.detach()[:1] if is_repeated else tensor.detach()).double(), "float")
    double = torch.empty_strided(tensor.shape, tensor.stride(), dtype=torch.float64)
    double = values.expand(tensor.shape) if is_repeated else double.copy_(values)
    return double.requires_grad_(tensor.requires_grad)


def compare(program: Program, door: str, returned: Outcome, expected: Outcome) -> Verdict:
    """Hold a door's outcome to eager's."""
    pairs = list(zip(returned.named(), expected.named(), strict=False))
    if len(returned.named()) != len(expected.named()):
        return Verdict("wrong", f"{len(returned.named())} results, not {len(expected.named())}")
    differing: list[int] = []
    for place, ((name, ours), (_, eagers)) in enumerate(pairs):
        if (ours is None) != (eagers is None):
            if eagers is None or bool(eagers.any()):
                return Verdict("wrong", f"{name}: {'no tensor' if ours is None else 'a tensor'}, unlike eager")
            continue
        if ours is None or eagers is None:
            continue
        if ours.shape != eagers.shape or (ours.dtype != eagers.dtype and door != "training"):
            expected_form = f"{eagers.dtype} {tuple(eagers.shape)}"
            return Verdict("wrong", f"{name}: {ours.dtype} {tuple(ours.shape)}, not {expected_form}")
        if program.is_special:
            if bool(_differing_special_values(ours, eagers, name).any()):
                differing.append(place)
        elif not _agree(ours, eagers):
            differing.append(place)
    if not differing:
        return Verdict("ok")
    if program.is_special:
        return _held_element_by_element(program, door, differing, pairs)
    return _held_to_double(program, door, differing, pairs)


def _agree(ours: torch.Tensor, eagers: torch.Tensor) -> bool:
    if not eagers.is_floating_point():
        return bool(torch.equal(ours, eagers))
    if ours.dtype != eagers.dtype:
        ours, eagers = ours.float(), eagers.float()
    try:
        torch.testing.assert_close(ours, eagers, equal_nan=True)
    except AssertionError:
        return False
    return True


def _differing_special_values(ours: torch.Tensor, eagers: torch.Tensor, name: str) -> torch.Tensor:
    """Return where there is something else than eager has; in a gradient the order of a sum decides zeros' signs."""
    if not eagers.is_floating_point():
        return ours != eagers
    eagers, close = eagers.to(ours.dtype), SPECIAL_CLOSE[eagers.dtype]
    differing = ~torch.isclose(ours, eagers, rtol=close, atol=close, equal_nan=True)
    is_gradient = name.startswith("gradient")
    return differing if is_gradient else differing | (ours == 0) & (eagers == 0) & (ours.signbit() != eagers.signbit())


def _held_element_by_element(program: Program, door: str, differing: list[int], pairs: list) -> Verdict:
    """Tell what differs from what roundings decide."""
    try:
        runs = [expected_of(program, door, dict(IN_DOUBLE), seed).named() for seed in (None, *range(DISTURBED_RUNS))]
    except Exception:  # another kernel, which saves for the backward what the program then writes into
        runs = []
    for place in differing:
        (name, ours), (_, eagers) = pairs[place]
        wrong = _differing_special_values(ours, eagers, name)
        others = [value for run in runs if (value := run[place][1]) is not None and value.shape == ours.shape]
        if others:
            wrong &= ~_decided_by_rounding(ours, eagers, others)
        for element in wrong.nonzero()[:1].tolist():
            found, wanted = ours[tuple(element)].item(), eagers[tuple(element)].item()
            return Verdict("wrong", f"{name}: {found}, not {wanted}, at {tuple(element)}")
    return Verdict("ok", "beside float64")


def _decided_by_rounding(ours: torch.Tensor, eagers: torch.Tensor, runs: list[torch.Tensor]) -> torch.Tensor:
    """Return where finite elements are no further from float64 than disturbed ones, or a few times eager's own."""
    exact, *moved = (run.double() for run in runs)
    ours, eagers = ours.double(), eagers.double()
    movement = torch.stack([(other - exact).abs() for other in (*moved, eagers)]).amax(0)
    are_zeros = (ours == 0) & (eagers == 0)  # of which the signs differ
    return ~are_zeros & movement.isfinite() & ours.isfinite() & ((ours - exact).abs() <= FACTOR * movement)


def _held_to_double(program: Program, door: str, differing: list[int], pairs: list) -> Verdict:
    try:
        exact = expected_of(program, door, dict(IN_DOUBLE)).named()
        moved = [expected_of(program, door, dict(IN_DOUBLE), seed).named() for seed in range(DISTURBED_RUNS)]
    except Exception as error:  # another kernel, which saves for the backward what the program then writes into
        return Verdict("undecided", f"in float64: {first_line(error)}")
    gradients = {
        place: (value, eagers) for place, ((name, value), (_, (_, eagers))) in enumerate(zip(exact, pairs, strict=True))
        if name.startswith("gradient") and value is not None and eagers is not None
    }
    largest = max((_largest(value) for value, _ in gradients.values()), default=0.0)
    cancelled = {
        place: held for place, held in gradients.items() if _largest(held[0]) < CANCELLED * max(largest, 1.0)
    }
    lost = max((_distance(eagers, value) for value, eagers in cancelled.values()), default=0.0)
    for place in differing:
        (name, ours), (_, eagers) = pairs[place]
        reference = exact[place][1]
        others = [run[place][1] for run in moved]
        allowed = _allowed(reference, eagers, others)
        if allowed is None:
            continue
        if door == "training" and name.startswith("gradient"):
            allowed += _rounding_of_weight(program, int(name.split()[1]))
        if place in cancelled:
            allowed = max(allowed, OF_CANCELLED * largest, FACTOR * lost)
        error = _distance(ours, reference)
        if not error <= allowed:
            return Verdict("wrong", f"{name}: off by {error:.3g}, where {allowed:.3g} is allowed")
    return Verdict("ok", "beside float64")


def _rounding_of_weight(program: Program, place: int) -> float:
    """Return how far off a gradient may be that was found as the change of a weight, which its type rounds."""
    weights = [given for given in program.inputs if given.gradient]
    weight = weights[place].tensor().detach()
    return EPSILON[weights[place].dtype] * float(weight.abs().max()) if weight.numel() else 0.0


def _allowed(reference: torch.Tensor, eagers: torch.Tensor, others: list[torch.Tensor]) -> float | None:
    """Return how far from float64 a result may be; None where roundings decide what it is."""
    if not reference.is_floating_point():
        stable = all(torch.equal(reference, other) for other in others)
        return 0.0 if stable and torch.equal(reference.to(eagers.dtype), eagers) else None
    if not bool(reference.isfinite().all()) or not bool(eagers.isfinite().all()):
        # Beyond the range of the element type, or undefined: eager and float64 say different things of it.
        return None
    scale = float(reference.abs().max()) if reference.numel() else 0.0
    movement = max(_distance(other, reference) for other in [*others, eagers])
    if not math.isfinite(movement):
        return None
    least = LEAST.get(eagers.dtype, LEAST[torch.float32])
    return FACTOR * movement + least * scale + 1e-7


def _largest(value: torch.Tensor | None) -> float:
    return float(value.abs().max()) if value is not None and value.numel() else 0.0


def _distance(value: torch.Tensor, reference: torch.Tensor) -> float:
    if not value.numel():
        return 0.0
    return float((value.double() - reference.double()).abs().max())
