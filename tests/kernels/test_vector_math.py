"""Elementary functions of the vector vocabulary against float64: every exponent, for both instruction sets."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.kernels.elem_planner import run_op
from torchipu._kernels.abi import CHECKED

# How far from the exact value a function may be, in units of the last place of the float nearest to it.
BOUNDS = {
    "exp": 1, "expm1": 2, "exp2": 1, "log": 1, "log1p": 1, "log2": 1, "log10": 1, "sin": 2, "cos": 2, "tanh": 2,
    "sigmoid": 2.5, "erf": 1.5, "sqrt": 0.5, "rsqrt": 2, "tan": 1.5, "atan": 1.5, "asin": 1.5, "acos": 1.5, "sinh": 2,
    "cosh": 2, "asinh": 1, "acosh": 1, "atanh": 1, "erfc": 2, "erfinv": 1.5,
}
BOUNDS_OF_PAIRS = {"atan2": 1.5, "hypot": 1.5, "fmod": 0, "pow": 1, "nextafter": 0}
OVERLOADS = {"fmod": "Tensor", "pow": "Tensor_Tensor", "remainder": "Tensor"}
OWN_ISA = "avx2" if os.environ.get("TORCHIPU_ISA") == "avx2" else "avx512"
"""Of this process: kernels choose their instruction set as they are imported, the wider one unless they are told."""
ISAS = (OWN_ISA,) if CHECKED else ("avx2", "avx512")
"""Checked kernels are built for one, whichever is asked for."""
MANTISSAS = 257
TINY = torch.finfo(torch.float32).tiny
OTHERS = (
    "gelu", "silu", "mish", "softplus", "elu", "sinc", "gelu_backward", "silu_backward", "logaddexp", "special_ndtri",
    "remainder",
)
"""Functions made of those above, some of two arguments."""
RUN = """
import sys, torch
from tests.kernels.test_vector_math import values
torch.save(values(), sys.argv[1])
"""


def sample() -> torch.Tensor:
    """Return floats of both signs and of all exponents, subnormal ones too, zeros, infinities and NaN, `[n]`."""
    torch.manual_seed(5)
    exponents = torch.arange(255, dtype=torch.int32)[:, None] << 23
    mantissas = torch.randint(0, 1 << 23, (255, MANTISSAS), dtype=torch.int32)
    mantissas[:, :3] = torch.tensor([0, 1, (1 << 23) - 1], dtype=torch.int32)
    sizes = (exponents | mantissas).reshape(-1).view(torch.float32)
    # where exp is neither 0 nor infinite, and where functions pass from one formula to the other
    steps = [torch.linspace(-105, 90, 50_001), torch.linspace(-4, 4, 50_001)]
    # where sine and cosine nearly vanish
    steps.append((torch.arange(-20_000, 20_001, dtype=torch.float64) * (math.pi / 2)).float())
    return torch.cat([sizes, -sizes, *steps, torch.tensor([math.inf, -math.inf, math.nan])])


def pairs() -> tuple[torch.Tensor, torch.Tensor]:
    """Return pairs of usual sizes, pairs of any size, and every pair of the special ones, `[n]` each."""
    torch.manual_seed(6)
    usual = torch.randn(2, 100_001) * torch.tensor([[3.0], [0.4]])
    exponents = torch.randint(1, 255, (2, 30_000), dtype=torch.int32) << 23
    signs = torch.randint(0, 2, (2, 30_000), dtype=torch.int32) << 31
    any_size = (signs | exponents | torch.randint(0, 1 << 23, (2, 30_000), dtype=torch.int32)).view(torch.float32)
    special = torch.tensor([
        0.0, -0.0, 1, -1, 0.5, 2, 7.25, math.inf, -math.inf, math.nan, 3e38, -3e38, TINY, 1e-20, 1e20,
    ])
    left, right = torch.cat([usual, any_size, torch.cartesian_prod(special, special).T], 1)
    return left, right


def values() -> dict[str, torch.Tensor]:
    """Return what all functions give of the samples; those of two also of the pairs, as "... of pairs"."""
    x, couples = sample(), pairs()
    y = x[torch.randperm(len(x), generator=torch.Generator().manual_seed(6))]
    found = {}
    for name in (*BOUNDS, *OTHERS, *BOUNDS_OF_PAIRS):
        target = f"aten.{name}.{OVERLOADS.get(name, 'default')}"
        is_of_two = name in BOUNDS_OF_PAIRS or name.endswith("_backward") or name in ("logaddexp", "remainder")
        found[name] = run_op(target, *((x, y) if is_of_two else (x,)))[0][0]
        if is_of_two:
            found[f"{name} of pairs"] = run_op(target, *couples)[0][0]
    return found


@pytest.fixture(scope="module")
def by_isa(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, torch.Tensor]]:
    """Run all functions, with the other instruction set in a process of its own."""
    found = {OWN_ISA: values()}
    for isa in {*ISAS} - {OWN_ISA}:
        path: Path = tmp_path_factory.mktemp(isa) / "values"
        command = [sys.executable, "-c", RUN, str(path)]
        subprocess.run(command, check=True, env={**os.environ, "TORCHIPU_ISA": isa}, timeout=600)
        found[isa] = torch.load(path)
    return found


@pytest.fixture(scope="module", params=ISAS)
def results(request: pytest.FixtureRequest, by_isa: dict[str, dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    return by_isa[request.param]


@pytest.mark.skipif(CHECKED, reason="checked kernels are built for one instruction set")
def test_functions_give_the_same_bits_for_both_instruction_sets(by_isa: dict[str, dict[str, torch.Tensor]]) -> None:
    differing = {}
    for name, first in by_isa[ISAS[0]].items():
        second = by_isa[ISAS[1]][name]
        differs = (first.view(torch.int32) != second.view(torch.int32)) & ~(first.isnan() & second.isnan())
        if differs.any():
            differing[name] = int(differs.sum()), first[differs][:3], second[differs][:3]
    assert not differing


def flushed(x: torch.Tensor) -> torch.Tensor:
    """Return zeros for subnormal floats, of which the kernels make zeros as an IPU does."""
    return torch.where(x.abs() < TINY, x * 0, x)


def errors_in_ulp(found: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """Return the distances from the exact values in units of the last place."""
    return (found.double() - exact).abs() / torch.ldexp(torch.ones_like(exact), torch.frexp(exact).exponent - 24)


@pytest.mark.parametrize("name", BOUNDS)
def test_function_is_within_its_bound_of_float64(results: dict[str, torch.Tensor], name: str) -> None:
    found = results[name]
    exact = getattr(torch, name)(flushed(sample()).double())
    rounded = exact.float()
    normal = rounded.isfinite() & (rounded.abs() >= TINY)
    errors = errors_in_ulp(found, exact)[normal]
    worst = int(errors.argmax())
    assert errors[worst] <= BOUNDS[name], f"{name}({sample()[normal][worst]!r}) is {found[normal][worst]!r}"


@pytest.mark.parametrize("name", BOUNDS)
def test_function_has_the_specials_of_the_exact_one(results: dict[str, torch.Tensor], name: str) -> None:
    """NaN, infinities and zeros are where the exact values, rounded to float, have them, with their signs."""
    found, exact = results[name], getattr(torch, name)(flushed(sample()).double())
    rounded = flushed(exact.float())
    special = ~rounded.isfinite() | (rounded == 0)
    torch.testing.assert_close(flushed(found)[special], rounded[special], rtol=0, atol=0, equal_nan=True)
    assert not found[~special].isnan().any()
    zero = exact == 0
    assert torch.equal(found.signbit()[zero], exact.signbit()[zero])


@pytest.mark.parametrize("name", BOUNDS_OF_PAIRS)
def test_function_of_two_is_within_its_bound_of_float64(results: dict[str, torch.Tensor], name: str) -> None:
    found, (left, right) = results[f"{name} of pairs"], pairs()
    if name == "nextafter":  # the neighbour depends on the type
        exact = torch.nextafter(left, right).double()
    else:
        exact = getattr(torch, name)(left.double(), right.double())
    rounded = flushed(exact.float())
    normal = rounded.isfinite() & (rounded != 0)
    errors = errors_in_ulp(found, exact)[normal]
    worst = int(errors.argmax())
    assert errors[worst] <= BOUNDS_OF_PAIRS[name], f"{name}({left[normal][worst]!r}, {right[normal][worst]!r})"
    torch.testing.assert_close(flushed(found)[~normal], rounded[~normal], rtol=0, atol=0, equal_nan=True)
    zero = exact == 0
    assert torch.equal(found.signbit()[zero], exact.signbit()[zero])


def test_gelu_is_nearer_to_float64_than_that_of_eager(results: dict[str, torch.Tensor]) -> None:
    """Errors count against the argument: where it is negative, sums of eager cancel as ours do."""
    x = flushed(sample())
    is_normal = x.isfinite() & (x.abs() >= 4 * TINY)  # and the result too
    exact = torch.nn.functional.gelu(x.double())

    def error(found: torch.Tensor) -> float:
        return float(((found.double() - exact).abs() / x.abs())[is_normal].max())

    assert error(results["gelu"]) < 0.5 * error(torch.nn.functional.gelu(x))
    assert error(results["gelu"]) < 1.2e-7


def test_gelu_has_the_specials_of_float64(results: dict[str, torch.Tensor]) -> None:
    exact = torch.nn.functional.gelu(sample()[-3:].double()).float()
    torch.testing.assert_close(results["gelu"][-3:], exact, rtol=0, atol=0, equal_nan=True)
    is_zero = flushed(sample()) == 0
    assert torch.equal(results["gelu"][is_zero].signbit(), sample()[is_zero].signbit())
    assert (results["gelu"][is_zero] == 0).all()
