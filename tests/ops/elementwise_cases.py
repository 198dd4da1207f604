"""Arguments for every elementwise record, made from the schema of its overload and a table of domains."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch

from torchipu.optable.spec import TABLE

Call = tuple[list[object], dict[str, object]]

TARGETS = sorted(
    target for target, spec in TABLE.items()
    if (spec.instruction is not None or target == "aten.glu_backward.default") and target.startswith("aten.")
)
DTYPES = (
    torch.float32, torch.float16, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
)
# Where operands are drawn from, by op and operand (or the op's first operand), when a normal distribution does not do.
POSITIVE, UNIT, INNER = (0.05, 8.0), (0.0, 1.0), (-0.99, 0.99)
DOMAINS: dict[str, tuple[float, float]] = {
    **dict.fromkeys(
        ["log", "log2", "log10", "sqrt", "rsqrt", "special_entr", "xlogy", "xlogy.other", "igamma", "igamma.other",
         "igammac", "igammac.other", "special_bessel_y0", "special_bessel_y1", "special_modified_bessel_k0",
         "special_modified_bessel_k1", "special_scaled_modified_bessel_k0", "special_scaled_modified_bessel_k1",
         "special_zeta.other", "special_erfcx", "pow", "polygamma"], POSITIVE,
    ),
    **dict.fromkeys(["logit", "logit_backward.self", "special_ndtri"], (0.01, 0.99)),
    **dict.fromkeys(["asin", "acos", "atanh", "erfinv"], INNER),
    **dict.fromkeys(["log1p", "special_xlog1py", "special_xlog1py.other"], (-0.9, 8.0)),
    "acosh": (1.1, 20.0), "special_zeta": (1.5, 20.0), "mvlgamma": (1.6, 20.0), "sigmoid_backward.output": UNIT,
    "tanh_backward.output": INNER,
    **{f"special_{name}.n": (0.0, 14.0) for name in (
        "chebyshev_polynomial_t", "chebyshev_polynomial_u", "chebyshev_polynomial_v", "chebyshev_polynomial_w",
        "shifted_chebyshev_polynomial_t", "shifted_chebyshev_polynomial_u", "shifted_chebyshev_polynomial_v",
        "shifted_chebyshev_polynomial_w", "hermite_polynomial_h", "hermite_polynomial_he", "laguerre_polynomial_l",
        "legendre_polynomial_p",
    )},
    "addcdiv.tensor2": POSITIVE, "elu_backward.self_or_result": (-0.9, 3.0),
}
NUMBERS: dict[str, list[Any]] = {
    "alpha": [1.5], "value": [0.7], "weight": [0.3], "lambd": [0.4], "negative_slope": [0.2], "beta": [1.5],
    "threshold": [0.3, 2.0], "min_val": [-0.6], "max_val": [1.1], "scale": [1.25], "input_scale": [0.8],
    "min": [-0.5], "max": [0.8], "nan": [None, 2.5], "posinf": [None, 7.0], "neginf": [None, -7.0],
    "decimals": [2, 0, -1], "p": [3], "dim": [-1, 0], "lower": [0.1], "upper": [0.3], "training": [True, False],
    "self_is_result": [False], "is_result": [False, True], "approximate": ["none", "tanh"], "eps": [None, 0.1],
    "rounding_mode": [None, "floor", "trunc"], "other": [0.75], "self": [2.5], "exponent": [2, 3, 0.5, -1, 1.7],
    "x": [0.3, 1.5], "non_blocking": [False],
}
BY_OP: dict[str, list[Any]] = {
    "polygamma.n": [0, 1, 2, 3], "special_zeta.self": [2.5], "pow.self": [2.0, 0.5], "masked_fill.value": [0.7],
    "hardtanh_backward.min_val": [-0.6], **{
        f"special_{name}.n": [0, 1, 5, 11] for name in (
            "chebyshev_polynomial_t", "chebyshev_polynomial_u", "chebyshev_polynomial_v", "chebyshev_polynomial_w",
            "shifted_chebyshev_polynomial_t", "shifted_chebyshev_polynomial_u", "shifted_chebyshev_polynomial_v",
            "shifted_chebyshev_polynomial_w", "hermite_polynomial_h", "hermite_polynomial_he", "laguerre_polynomial_l",
            "legendre_polynomial_p",
        )
    },
    "alpha.whole": [2],
}
INTEGRAL = ("bitwise_", "gcd", "lcm", "__lshift__", "__rshift__")
WHOLE_NUMBERS = {"other": 3, "self": 2, "exponent": 3, "value": 2, "alpha": 2, "min": -1, "max": 3, "min_val": -1,
                 "max_val": 2, "threshold": 1, "x": 2}
MASKS = {"where.condition", "masked_fill.mask", "native_dropout_backward.mask"}
ONE_VALUE = {"masked_fill.Tensor.value", "lerp.Scalar.weight"}


def overload_of(target: str) -> Any:
    """Return the ATen overload of a record."""
    _, name, overload = target.split(".")
    return getattr(getattr(torch.ops.aten, name), overload)


def draw(op: str, operand: str, first: bool, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Draw an operand from its op's domain."""
    if f"{op}.{operand}" in MASKS or dtype is torch.bool:
        return torch.rand(shape) < 0.5
    domain = DOMAINS.get(f"{op}.{operand}") or (DOMAINS.get(op) if first else None)
    if operand == "n":
        return torch.randint(0, 14, shape).to(dtype)
    if dtype.is_floating_point:
        return (torch.empty(shape).uniform_(*domain) if domain else torch.randn(shape) * 3).to(dtype)
    low, high = (0, 9) if dtype is torch.uint8 else (-9, 9)
    if domain:
        low, high = math.ceil(domain[0]), max(math.floor(domain[1]), math.ceil(domain[0]) + 1)
    value = torch.randint(low, high, shape)
    # Whole divisors and exponents: eager refuses a zero of the first and a negative one of the second.
    divisor = operand in ("other", "exponent") and op in ("floor_divide", "remainder", "fmod", "div", "pow")
    return (value.abs() % 5 + 1 if divisor or "shift" in op and operand == "other" else value).to(dtype)


def calls(
    target: str, dtype: torch.dtype = torch.float32, shapes: tuple[tuple[int, ...], ...] = ((6, 33), (33,), (6, 1)),
    layout: Callable[[torch.Tensor], torch.Tensor] = lambda value: value,
) -> list[Call]:
    """Return calls of an overload with operands of a type; those with numbers run through their values one by one.

    Args:
        target: Overload.
        dtype: Element type of every operand that is not a mask.
        shapes: Shapes of the operands in order; the last is used again where there are more.
        layout: Applied to each operand.
    """
    _, op, overload = target.split(".")
    schema = overload_of(target)._schema
    base, varied = {}, {}
    tensors = 0
    whole = not dtype.is_floating_point
    same_shape = op.endswith("backward") or op in ("_prelu_kernel",)
    for argument in schema.arguments:
        name = argument.name
        if str(argument.type) in ("Tensor", "Optional[Tensor]"):
            shape = shapes[0 if same_shape and op != "glu_backward" else min(tensors, len(shapes) - 1)]
            if op == "glu_backward":
                shape = (6, 34) if name == "self" else (6, 17)
            elif op == "glu":
                shape = (6, 34)
            if f"{op}.{overload}.{name}" in ONE_VALUE:
                base[name] = draw(op, name, False, (), dtype)
                continue
            base[name] = layout(draw(op, name, tensors == 0, shape, dtype))
            tensors += 1
        elif name in ("dtype", "layout", "device", "pin_memory", "memory_format", "generator"):
            continue
        else:
            values = BY_OP.get(f"{op}.{name}") or NUMBERS.get(name, [argument.default_value])
            if op == "glu_backward":
                values = [-1]
            if (whole or op.startswith(INTEGRAL)) and name in WHOLE_NUMBERS and not op.endswith("backward"):
                values = [WHOLE_NUMBERS[name]]
            varied[name] = values
    if op == "_to_copy":
        varied["dtype"] = list(DTYPES)
    if op == "log_sigmoid_backward":  # eager keeps it in the forward
        base["buffer"] = torch.exp(-base["self"].double().abs()).to(dtype)
    base.update({name: values[0] for name, values in varied.items()})
    made = [dict(base)] + [
        {**base, name: value} for name, values in varied.items() for value in values[1:]
    ]
    return [_as_call(schema, given) for given in made]


def _as_call(schema: Any, given: dict[str, object]) -> Call:
    args = [given[a.name] for a in schema.arguments if not a.kwarg_only and a.name in given]
    return args, {a.name: given[a.name] for a in schema.arguments if a.kwarg_only and a.name in given}


@functools.cache
def accepted(target: str, dtype: torch.dtype) -> list[tuple[Call, tuple[torch.Tensor, ...]]]:
    """Return the calls that eager accepts for a type, each with eager's results; the same whoever asks first."""
    found = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        given = calls(target, dtype)
    for args, kwargs in given:
        try:
            results = overload_of(target)(*args, **kwargs)
        except (RuntimeError, TypeError, ZeroDivisionError):  # not defined for the type
            continue
        results = tuple(results) if isinstance(results, (tuple, list)) else (results,)
        if all(result.dtype in DTYPES for result in results):
            found.append(((args, kwargs), results))
    return found


def in_double(call: Call) -> Call:
    """Return a call with its floats in float64."""

    def widen(value: object) -> object:
        return value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value

    args, kwargs = call
    return [widen(value) for value in args], {name: widen(value) for name, value in kwargs.items()}
