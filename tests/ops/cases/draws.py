"""Calls of the records that draw random bits; tests compare types and shapes, and that threads draw the same."""

from __future__ import annotations

from collections.abc import Iterator

from tests.ops.cases.drawing import Call, Draw, call


def cases(draw: Draw) -> Iterator[Call]:
    """Yield the calls."""
    n, x, dtype = draw.batch, draw(draw.batch, 5, 7), draw.dtype
    yield call("randperm.default", 5 * n, dtype=dtype)
    for name, bounds in (("randint.default", (9,)), ("randint.low", (2, 9))):
        yield call(name, *bounds, [n, 5], dtype=dtype)
    yield call("randint_like.default", x, 9)
    yield call("randint_like.low_dtype", x, 2, 9)
    yield call("bernoulli.p", x, 0.3)
    if not dtype.is_floating_point:
        return
    yield call("native_dropout.default", x, 0.3, True)
    yield call("dropout.default", x, 0.3, True)
    yield call("bernoulli.default", draw.within(0, 1, n, 5))
    for name in ("rand", "randn"):
        yield call(f"{name}.default", [n, 5], dtype=dtype)
        yield call(f"{name}_like.default", x)
    for name in ("uniform", "exponential", "normal_functional"):
        yield call(f"{name}.default", x)
    yield call("normal.float_float", 0.5, 2.0, [n, 5], dtype=dtype)
    yield call("multinomial.default", draw.within(0.1, 1, n, 7), 4)
    yield call("multinomial.default", draw.within(0.1, 1, 7), 4, True)
