"""One sample: compiled, run and compared with eager PyTorch.

Tolerances are the defaults of `torch.testing.assert_close` for the element type. A floating result outside of them is
held against eager in float64 too: eager's own result is rounded, in float16 after every operation inside of it, where
the IPU's arithmetic (and ours) accumulates in float32. The result then passes where it is as near to the one in float64
as the default tolerance plus twice the largest error of eager's own result.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from tests.opinfo.choices import Choice, assert_same_choice, assert_same_gradient, choice_of
from tests.opinfo.doors import directly, flat, through_dynamo, traced_by_torch
from tests.opinfo.samples import UNDEFINED, Call, Case, seed
from tests.raised import first_line, our_error
from torchipu.errors import InternalError, IpuError
from torchipu.report.recorder import recording

SEEDS = 16
"""Eager runs that must agree for a sample to count as not random; two agree by chance on small tensors."""

NARROWED = {torch.float64: {"rtol": 1e-5, "atol": 1e-5}}
"""float64 is computed in float32: its tolerance is that of float32, and a little for chains of operations."""


@dataclass(slots=True)
class Verdict:
    """What came of one sample.

    Attributes:
        verdict: A word of the package's list.
        line: First line of the error, or what differs.
        generic: ATen overloads that ran through the generic codelet.
    """

    verdict: str
    line: str = ""
    generic: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Outcome:
    """Results of a run.

    Attributes:
        values: Leaves of what the operator returned, then what in-place runs left in the first tensor.
        gradients: Gradient of each tensor that asks for one; None where it does not reach a result.
    """

    values: list[Any]
    gradients: list[torch.Tensor | None]


class _DiffersError(Exception):
    """What differs between two outcomes."""


def judge(case: Case, call: Call, *, dynamo: bool) -> Verdict:
    """Run a sample through the backend and through eager, and compare."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            expected = _run(call, call, call.tensors())
        except Exception as error:
            return Verdict("skipped", first_line(error))
        metadata_only = case.op in UNDEFINED
        with recording() as programs:
            try:
                tensors = call.tensors()
                compiled = through_dynamo(call) if dynamo else directly(call, tensors)
                returned = _run(call, compiled, tensors)
            except Exception as error:
                if dynamo and our_error(error) is None and not _dynamo_traces(call):
                    return judge(case, call, dynamo=False)
                return _explain(call, error, expected, metadata_only)
        generic = sorted({op.target for program in programs for op in program.graph.ops if op.kind == "generic"})
        try:
            _compare(returned, expected, call, metadata_only)
        except _DiffersError as difference:
            verdict = "torchs" if _differs_with_torch_alone(call, expected, metadata_only) else "wrong"
            return Verdict(verdict, str(difference), generic)
        return Verdict("ok", "", generic)


def _differs_with_torch_alone(call: Call, expected: _Outcome, metadata_only: bool) -> bool:
    """Whether the graphs that torch traces already differ from eager, whatever runs them."""
    try:
        tensors = call.tensors()
        returned = _run(call, traced_by_torch(call), tensors)
        _compare(returned, expected, call, metadata_only)
    except _DiffersError:
        return True
    return False


def _dynamo_traces(call: Call) -> bool:
    """Whether Dynamo takes the sample with another backend; it takes no operator that seeds a generator."""
    try:
        through_dynamo(call, backend="aot_eager")(*call.tensors())
    except Exception:
        return False
    return True


def _run(call: Call, function: Callable[..., Any], tensors: Sequence[torch.Tensor], number: int = 0) -> _Outcome:
    """Call a function of the sample's tensors, and take gradients where the results have any."""
    seed(number)
    values = flat(function(*tensors))
    if call.in_place:
        return _Outcome([*values, tensors[0]], [])
    asking = [tensor for tensor in tensors if tensor.requires_grad]
    if not asking:
        return _Outcome(values, [])
    reaching = [value for value in _finished(call, values) if isinstance(value, torch.Tensor) and value.requires_grad]
    if not reaching:
        return _Outcome([_bare(value) for value in values], [])
    tangents = [_tangent(value, place) for place, value in enumerate(reaching)]
    gradients = torch.autograd.grad(reaching, asking, tangents, allow_unused=True)
    return _Outcome([_bare(value) for value in values], list(gradients))


def _finished(call: Call, values: list[Any]) -> list[Any]:
    """Return what gradients are taken of: OpInfo removes what is not determined, such as the sign of an eigenvector."""
    if call.finish is None or not values:
        return values
    return flat(call.finish(values[0] if len(values) == 1 else tuple(values)))


def _tangent(value: torch.Tensor, place: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(place)
    return torch.randn(value.shape, generator=generator, dtype=torch.float64).to(value.dtype)


def _bare(value: Any) -> Any:
    return value.detach() if isinstance(value, torch.Tensor) else value


def _explain(call: Call, error: Exception, expected: _Outcome, metadata_only: bool) -> Verdict:
    """Say whose error it is: ours, or torch's for this sample with any backend."""
    ours = our_error(error)
    if ours is None or not isinstance(error, IpuError):
        try:
            traced_by_torch(call)(*call.tensors())
        except Exception as torchs:
            return _with_breaks(call, torchs, expected, metadata_only)
    if ours is not None:
        return _refused(ours)
    return Verdict("error", f"{type(error).__name__}: {first_line(error)}")


def _refused(error: IpuError, how: str = "") -> Verdict:
    """Return the verdict for an error of ours; one that says that the defect is ours refuses nothing."""
    line = first_line(error)
    if isinstance(error, InternalError):
        return Verdict("error", f"{how}{line}")
    lacks_type = "has no counterpart on the IPU" in line or "cannot be held by the IPU" in line
    return Verdict("no_type" if lacks_type else "refused", f"{how}{type(error).__name__}: {line}")


def _with_breaks(call: Call, torchs: Exception, expected: _Outcome, metadata_only: bool) -> Verdict:
    """Run a sample that torch cannot trace as one graph through torch.compile, which leaves parts to eager."""
    try:
        returned = _run(call, through_dynamo(call, fullgraph=False), call.tensors())
        _compare(returned, expected, call, metadata_only)
    except _DiffersError as difference:
        return Verdict("wrong", f"with graph breaks: {difference}")
    except Exception as error:
        ours = our_error(error)
        if ours is not None:
            return _refused(ours, "with graph breaks: ")
        try:
            _run(call, through_dynamo(call, fullgraph=False, backend="aot_eager"), call.tensors())
        except Exception:
            return Verdict("breaks", f"torch: {first_line(torchs)}")
        return Verdict("error", f"with graph breaks: {type(error).__name__}: {first_line(error)}")
    return Verdict("breaks", f"torch: {first_line(torchs)}")


# ---------------------------------------------------------------------- comparing
def _is_random(call: Call, expected: _Outcome) -> bool:
    """Whether eager itself gives other results under other seeds."""
    for number in range(1, SEEDS):
        other = _run(call, call, call.tensors(), number)
        try:
            torch.testing.assert_close(
                (expected.values, expected.gradients), (other.values, other.gradients), equal_nan=True,
            )
        except AssertionError:
            return True
        except Exception:  # values that assert_close does not know, such as layouts
            return False
    return False


def _compare(returned: _Outcome, expected: _Outcome, call: Call, metadata_only: bool) -> None:
    """Raise _DiffersError where a run differs from eager; of a random operator shapes and types alone are compared."""
    try:
        _compare_all(returned, expected, call, metadata_only)
    except _DiffersError:
        choice = choice_of(call)
        if choice is None and (metadata_only or not _is_random(call, expected)):
            raise
        _compare_all(returned, expected, call, metadata_only=True)
        if choice is not None:
            _compare_choices(returned, expected, call, choice)


def _compare_choices(returned: _Outcome, expected: _Outcome, call: Call, choice: Choice) -> None:
    """Raise _DiffersError where results of one type and shape are not both right choices among equal elements."""
    chosen_from = call.leaves[call.places[0]]
    try:
        assert_same_choice(choice, chosen_from, returned.values, expected.values)
        for ours, eagers in zip(returned.gradients, expected.gradients, strict=True):
            if ours is not None and eagers is not None:
                assert_same_gradient(choice, chosen_from, ours, eagers)
    except AssertionError as error:
        raise _DiffersError(f"not a choice among equal elements: {first_line(error)}") from None


def _compare_all(returned: _Outcome, expected: _Outcome, call: Call, metadata_only: bool) -> None:
    if len(returned.values) != len(expected.values):
        raise _DiffersError(f"{len(returned.values)} results, not {len(expected.values)}")
    exact: _Outcome | None = None
    pairs = [("result", place, a, b) for place, (a, b) in enumerate(zip(returned.values, expected.values, strict=True))]
    pairs += [
        ("gradient", place, a, b) for place, (a, b) in
        enumerate(zip(returned.gradients, expected.gradients, strict=True))
    ]
    for what, place, ours, eagers in pairs:
        try:
            _compare_one(ours, eagers, metadata_only)
        except _DiffersError as difference:
            if exact is None and not metadata_only:
                exact = _in_double(call)
            members = None if exact is None else exact.values if what == "result" else exact.gradients
            if members is None or place >= len(members) or not _is_as_near(ours, eagers, members[place]):
                raise _DiffersError(f"{what} {place}: {difference}") from None


def _compare_one(ours: Any, eagers: Any, metadata_only: bool) -> None:
    if not isinstance(eagers, torch.Tensor):
        if type(ours) is not type(eagers):
            raise _DiffersError(f"{type(ours).__name__}, not {type(eagers).__name__}")
        if not metadata_only and ours != eagers and not (ours != ours and eagers != eagers):
            raise _DiffersError(f"{ours!r}, not {eagers!r}")
        return
    if not isinstance(ours, torch.Tensor):
        raise _DiffersError(f"{ours!r} instead of a tensor")
    if (ours.dtype, ours.shape, ours.layout) != (eagers.dtype, eagers.shape, eagers.layout):
        raise _DiffersError(
            f"{ours.dtype} {list(ours.shape)} {ours.layout}, not {eagers.dtype} {list(eagers.shape)} {eagers.layout}"
        )
    if metadata_only:
        return
    try:
        torch.testing.assert_close(ours, eagers, equal_nan=True, **NARROWED.get(ours.dtype, {}))
    except AssertionError as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise _DiffersError("; ".join(line for line in lines[:5] if not line.startswith("Tensor-likes"))) from None


def _in_double(call: Call) -> _Outcome | None:
    try:
        return _run(call, call.in_double, call.tensors(torch.float64))
    except Exception:  # eager does not offer the operator in float64, or not with these arguments
        return None


def _is_as_near(ours: Any, eagers: Any, exact: Any) -> bool:
    """Whether a floating result is as near to the one in float64 as eager's own."""
    tensors = (ours, eagers, exact)
    if all(isinstance(value, torch.Tensor) and value.is_complex() for value in tensors):
        return _is_as_near(*(torch.view_as_real(value.resolve_conj()) for value in tensors))
    if not all(isinstance(value, torch.Tensor) and value.is_floating_point() for value in tensors):
        return False
    if ours.dtype != eagers.dtype or not ours.shape == eagers.shape == exact.shape:
        return False
    rounded = exact.to(ours.dtype).double()
    near, own = ours.double(), eagers.double()
    finite = torch.isfinite(rounded)
    # What is not finite must be so in ours too, and the same.
    if not torch.equal(torch.isfinite(near), finite):
        return False
    if not torch.equal(near[~finite].nan_to_num(nan=7.0), rounded[~finite].nan_to_num(nan=7.0)):
        return False
    errors = (own - rounded)[finite & torch.isfinite(own)].abs()
    largest = float(errors.max()) if errors.numel() else 0.0
    rtol, atol = {torch.float16: (1e-3, 1e-5), torch.bfloat16: (1.6e-2, 1e-5)}.get(ours.dtype, (1.3e-6, 1e-5))
    allowed = atol + rtol * rounded[finite].abs() + 2 * largest
    return bool(((near - rounded)[finite].abs() <= allowed).all())
