"""Elementwise ops: how each enters a fused chain, and what it costs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from torchipu.device.codelets import CAST, CIRCLE_FUNCTIONS, element_codelet, vector_codelet
from torchipu.device.compute_sets import linear_vertices
from torchipu.ir.graph import Op
from torchipu.ir.types import DType
from torchipu.optable.chain import Chain, Instruction, Value, class_of
from torchipu.optable.codelet import Codelet, Vertices
from torchipu.optable.spec import Constraint, OpSpec, register

if TYPE_CHECKING:
    from torchipu.target import Target


# --------------------------------------------------------------------------- instructions
def compute_class(op: Op, *names: str) -> str:
    """Return the class in which operands of mixed types are compared or combined: f if any is floating, else l."""
    for name in names:
        tensor = op.operand(name)
        if tensor is not None and tensor.dtype.is_floating:
            return "f"
        if tensor is None and isinstance(op.attrs.get(name), float):
            return "f"
    return "l"


def result_class(op: Op) -> str:
    """Return f for floating results, l for integers and bools."""
    return "f" if op.outputs[0].dtype.is_floating else "l"


def unary(name: str, integer: str | None = None) -> Instruction:
    """Apply ``f_name`` to self; integers stay integers where ``integer`` names their instruction (empty: unchanged)."""

    def build(chain: Chain, op: Op) -> Value:
        if integer is not None and result_class(op) == "l":
            value = chain.argument(op, "self", "l")
            return chain.run(integer, value) if integer else value
        return chain.run(f"f_{name}", chain.argument(op, "self", "f"))

    return build


def binary(name: str, left: str = "self", right: str = "other", *, integer: str = "") -> Instruction:
    """Apply ``f_name`` or ``l_name`` (or ``l_integer``) to two arguments, by the type of the result."""

    def build(chain: Chain, op: Op) -> Value:
        kind = result_class(op)
        operation = integer if integer and kind == "l" else name
        return chain.run(f"{kind}_{operation}", chain.argument(op, left, kind), chain.argument(op, right, kind))

    return build


def extreme(name: str, of_truths: str) -> Instruction:
    """The larger or the smaller of two arguments: of truth values whether either, or both, are true."""
    def build(chain: Chain, op: Op) -> Value:
        are_all = are_truths(op, "self", "other")
        kind = "b" if are_all else result_class(op)
        operation = of_truths if are_all else f"{kind}_{name}"
        return chain.run(operation, chain.argument(op, "self", kind), chain.argument(op, "other", kind))

    return build


def scaled_sum(sign: int, left: str = "self", right: str = "other") -> Instruction:
    """``left + sign * alpha * right``."""

    def build(chain: Chain, op: Op) -> Value:
        kind = result_class(op)
        a, b = chain.argument(op, left, kind), chain.argument(op, right, kind)
        alpha = op.number("alpha", 1)
        if alpha == 1:
            return chain.run(f"{kind}_add" if sign > 0 else f"{kind}_sub", a, b)
        if kind == "f":
            return chain.run("f_add_scaled", a, b, scalars=(sign * alpha,))
        scaled = chain.run("l_mul", b, chain.scalar(alpha, "l"))
        return chain.run("l_add" if sign > 0 else "l_sub", a, scaled)

    return build


def divide(chain: Chain, op: Op) -> Value:
    """Divide; rounded down or towards zero where asked for."""
    kind, mode = result_class(op), op.text("rounding_mode", None)
    a, b = chain.argument(op, "self", kind), chain.argument(op, "other", kind)
    if mode == "floor":
        return floor_divide(chain, op)
    if kind == "l":
        return chain.run("l_trunc_div", a, b)
    quotient = chain.run("f_div", a, b)
    return chain.run("f_trunc", quotient) if mode == "trunc" else quotient


def floor_divide(chain: Chain, op: Op) -> Value:
    """Divide and round down."""
    kind = result_class(op)
    a, b = chain.argument(op, "self", kind), chain.argument(op, "other", kind)
    bits = bits_of_power(chain, b)
    if bits is not None:
        return chain.run("l_shift_right", a, chain.scalar(bits, "l"))
    return chain.run(f"{kind}_floor_div", a, b)


def bits_of_power(chain: Chain, divisor: Value) -> int | None:
    """Return which power of two an integer that divides is; None for any other, and for one that is not known."""
    number = chain.nodes[divisor.number].constant if divisor.kind == "l" else None
    if number is None or number < 1 or int(number) & (int(number) - 1):
        return None
    return int(number).bit_length() - 1


def remainder(chain: Chain, op: Op) -> Value:
    """What is left by a division that rounds down; it has the sign of the divisor."""
    kind = result_class(op)
    a, b = chain.argument(op, "self", kind), chain.argument(op, "other", kind)
    bits = bits_of_power(chain, b)
    if bits is not None:
        return chain.run("l_and", a, chain.scalar((1 << bits) - 1, "l"))
    return chain.run(f"{kind}_remainder", a, b)


def ldexp(chain: Chain, op: Op) -> Value:
    """``self * 2^other``, as eager computes it: the power may overflow before the product does."""
    power = chain.run("f_exp2", chain.argument(op, "other", "f"))
    return chain.run("f_mul", chain.argument(op, "self", "f"), power)


def shift(name: str, factor: str) -> Instruction:
    """Shift the bits of integers; floats are multiplied or divided by a power of two."""

    def build(chain: Chain, op: Op) -> Value:
        kind = result_class(op)
        a, b = chain.argument(op, "self", kind), chain.argument(op, "other", kind)
        if kind == "l":
            return chain.run(f"l_shift_{name}", a, b)
        return chain.run(factor, a, chain.run("f_exp2", b))

    return build


def round_decimals(chain: Chain, op: Op) -> Value:
    """Round to so many decimals; a negative number of them rounds to tens, hundreds and so on."""
    value, decimals = chain.argument(op, "self", "f"), op.integer("decimals")
    if decimals == 0:
        return chain.run("f_round", value)
    power = chain.scalar(10.0 ** abs(decimals), "f")
    there, back = ("f_mul", "f_div") if decimals > 0 else ("f_div", "f_mul")
    return chain.run(back, chain.run("f_round", chain.run(there, value, power)), power)


def heaviside(chain: Chain, op: Op) -> Value:
    """0 below zero, 1 above, and ``values`` at zero."""
    kind = result_class(op)
    value, at_zero = chain.argument(op, "self", kind), chain.argument(op, "values", kind)
    if kind == "f":
        return chain.run("f_heaviside", value, at_zero)
    zero = chain.scalar(0, "l")
    above = chain.convert(chain.run("b_lt_l", zero, value), "l")
    return chain.run("l_where", chain.run("b_eq_l", value, zero), at_zero, above)


def square(chain: Chain, op: Op) -> Value:
    """Multiply by itself."""
    kind = result_class(op)
    value = chain.argument(op, "self", kind)
    return chain.run("f_square", value) if kind == "f" else chain.run("l_mul", value, value)


def scale(factor: float) -> Instruction:
    """Multiply by a constant."""

    def build(chain: Chain, op: Op) -> Value:
        return chain.run("f_mul", chain.argument(op, "self", "f"), chain.scalar(factor, "f"))

    return build


def nextafter(chain: Chain, op: Op) -> Value:
    """Step to the neighbour in the direction of ``other``, among the numbers of the result's type."""
    name = "f_nextafter_half" if op.outputs[0].dtype is DType.HALF else "f_nextafter"
    return chain.run(name, chain.argument(op, "self", "f"), chain.argument(op, "other", "f"))


def frexp(chain: Chain, op: Op) -> tuple[Value, Value]:
    """Split into a mantissa in [0.5, 1) and an exponent."""
    value = chain.argument(op, "self", "f")
    return chain.run("f_frexp", value), chain.run("l_frexp_exponent", value)


def are_truths(op: Op, *names: str) -> bool:
    """Return whether arguments are all tensors of truth values: these are compared byte by byte."""
    tensors = [op.operand(name) for name in names]
    return all(tensor is not None and tensor.dtype is DType.BOOL for tensor in tensors)


def compare_truths(chain: Chain, name: str, a: Value, b: Value) -> Value:
    """Compare truth values by logic: false is less than true."""
    match name:
        case "ne":
            return chain.run("b_xor", a, b)
        case "eq":
            return chain.run("b_not", chain.run("b_xor", a, b))
        case "lt":
            return chain.run("b_and", chain.run("b_not", a), b)
        case _:
            return chain.run("b_or", chain.run("b_not", a), b)


def compare(name: str, *, swap: bool = False) -> Instruction:
    """Compare two arguments in their common type; ``swap`` makes greater-than of less-than."""

    def build(chain: Chain, op: Op) -> Value:
        if are_truths(op, "self", "other"):
            a, b = chain.argument(op, "self", "b"), chain.argument(op, "other", "b")
            return compare_truths(chain, name, *((b, a) if swap else (a, b)))
        kind = compute_class(op, "self", "other")
        a, b = chain.argument(op, "self", kind), chain.argument(op, "other", kind)
        return chain.run(f"b_{name}_{kind}", *((b, a) if swap else (a, b)))

    return build


def power(chain: Chain, op: Op) -> Value:
    """Raise to a power; small constant exponents become products and roots, as eager does."""
    kind = result_class(op)
    base = chain.argument(op, "self", kind)
    if kind == "l":
        return chain.run("l_pow", base, chain.argument(op, "exponent", kind))
    if op.operand("exponent") is None and op.operand("self") is not None:
        exponent = op.number("exponent")
        short = {2: "f_square", 3: "f_cube", 0.5: "f_sqrt", -0.5: "f_rsqrt", -1: "f_recip"}.get(exponent)
        if short:
            return chain.run(short, base)
        if exponent == -2:
            return chain.run("f_recip", chain.run("f_square", base))
        if exponent == 1:
            return base
    return chain.run("f_pow", base, chain.argument(op, "exponent", kind))


def parametrised(name: str, *attrs: str, operands: Sequence[str] = ("self",)) -> Instruction:
    """Apply ``f_name`` to operands, with attributes as the instruction's constants."""

    def build(chain: Chain, op: Op) -> Value:
        values = [chain.argument(op, operand, "f") for operand in operands]
        return chain.run(f"f_{name}", *values, scalars=[op.number(attr) for attr in attrs])

    return build


def clamp(chain: Chain, op: Op) -> Value:
    """Limit to a range; bounds are numbers or tensors, either may be absent."""
    kind = result_class(op)
    value = chain.argument(op, "self", kind)
    numbers = op.operand("min") is None and op.operand("max") is None
    if kind == "f" and numbers and op.given("min") and op.given("max"):
        bounds = op.number("min"), op.number("max")
        if not any(map(math.isnan, bounds)):
            return chain.run("f_clamp", value, scalars=bounds)
    for name, instruction in (("min", "max"), ("max", "min")):
        if op.operand(name) is not None or op.given(name):
            value = chain.run(f"{kind}_{instruction}", value, chain.argument(op, name, kind))
    return value


def where(condition: str = "condition", chosen: str = "self", other: str = "other") -> Instruction:
    """Choose between two arguments by a mask."""

    def build(chain: Chain, op: Op) -> Value:
        kind = class_of(op.outputs[0].dtype)
        mask = chain.argument(op, condition, "b")
        return chain.run(f"{kind}_where", mask, chain.argument(op, chosen, kind), chain.argument(op, other, kind))

    return build


def logical(name: str) -> Instruction:
    """Combine two truth values."""

    def build(chain: Chain, op: Op) -> Value:
        return chain.run(f"b_{name}", chain.argument(op, "self", "b"), chain.argument(op, "other", "b"))

    return build


def logical_not(chain: Chain, op: Op) -> Value:
    """Negate a truth value."""
    return chain.run("b_not", chain.argument(op, "self", "b"))


def bitwise(name: str) -> Instruction:
    """Combine bits of two integers or bools."""

    def build(chain: Chain, op: Op) -> Value:
        kind = class_of(op.outputs[0].dtype)
        return chain.run(f"{kind}_{name}", chain.argument(op, "self", kind), chain.argument(op, "other", kind))

    return build


def bitwise_not(chain: Chain, op: Op) -> Value:
    """Flip bits."""
    kind = class_of(op.outputs[0].dtype)
    return chain.run(f"{kind}_not", chain.argument(op, "self", kind))


def classify(name: str) -> Instruction:
    """Test for NaN or infinity; integers are neither."""

    def build(chain: Chain, op: Op) -> Value:
        return chain.run(f"b_{name}", chain.argument(op, "self", "f"))

    return build


def signbit(chain: Chain, op: Op) -> Value:
    """Whether the sign is set; that of a zero counts, and that of a NaN."""
    if op.needed("self").dtype.is_floating:
        return chain.run("b_signbit", chain.argument(op, "self", "f"))
    return chain.run("b_signbit_l", chain.argument(op, "self", "l"))


def copy(name: str = "self") -> Instruction:
    """Pass a value on; the result's type converts it."""

    def build(chain: Chain, op: Op) -> Value:
        return chain.read(op.needed(name))

    return build


def add_product(chain: Chain, op: Op) -> Value:
    """``self + value * tensor1 * tensor2``."""
    kind = result_class(op)
    a, b, c = (chain.argument(op, name, kind) for name in ("self", "tensor1", "tensor2"))
    if kind == "f":
        return chain.run("f_fma3", a, b, c, scalars=(op.number("value"),))
    product = chain.run("l_mul", chain.run("l_mul", b, c), chain.scalar(op.number("value"), "l"))
    return chain.run("l_add", a, product)


def nan_to_num(chain: Chain, op: Op) -> Value:
    """Replace NaN and infinities."""
    most = 65504.0 if op.outputs[0].dtype is DType.HALF else 3.4028234663852886e38
    value = chain.argument(op, "self", result_class(op))
    if value.kind == "l":
        return value
    scalars = (op.number("nan", 0.0), op.number("posinf", most), op.number("neginf", -most))
    return chain.run("f_nan_to_num", value, scalars=scalars)


# --------------------------------------------------------------------------- records
def vector_map(name: str, half: float, single: float) -> Codelet:
    """Return a codelet of popops that takes so many cycles for four halves or two floats, as poplibs has it."""
    return vector_codelet(f"popops::{name}", half, single)


def estimated_map(name: str, half: float, single: float) -> Codelet:
    """Return a codelet of which no source gives the cycles: guessed from what it has to compute."""
    return vector_codelet(f"popops::{name}", half, single, source="estimate")


BINARY = vector_map("BinaryOp1D", 3, 3)
MULTIPLY_ADD = vector_map("ScaledAdd", 3, 3)
COMPARE = vector_map("Compare1D", 9, 7)
SELECT = element_codelet("popops::Select", 5, 5)
CHEAP = vector_map("UnaryOp1D", 2, 2)
COPY_MAP = estimated_map("UnaryOp1D<copy>", 1, 1)
POWER = element_codelet("popops::BinaryOp1D<pow>", 325, 312)
SHORT_POWERS = {
    2: CHEAP, 3: vector_map("UnaryOp1D<cube>", 3, 3), 0.5: vector_map("UnaryOp1D<sqrt>", 23, 10),
    -0.5: vector_map("UnaryOp1D<rsqrt>", 19, 8), -1: vector_map("UnaryOp1D<inverse>", 15, 6), 1: COPY_MAP,
}
"""What raising to a constant is instead, as `power` has it; PopART and popops have these ops too."""


def _lower_power(op: Op, target: Target) -> tuple[Vertices, ...]:
    return linear_vertices(SHORT_POWERS.get(op.number("exponent"), POWER))(op, target)


def _record(
    target: str, instruction: Instruction, codelet: Codelet, constraints: tuple[Constraint, ...] = (),
) -> OpSpec:
    kind = target.split(".")[1]
    return OpSpec(
        f"{target}" if target.count(".") > 1 else f"{target}.default", kind, linear_vertices(codelet), None,
        instruction, constraints=constraints,
    )


def register_maps(
    targets: str, instruction: Instruction, codelet: Codelet, constraints: tuple[Constraint, ...] = (),
) -> None:
    """Enter a record for each overload of a list separated by spaces.

    Args:
        targets: ``name`` or ``name.overload`` of ATen, or a full name of ours that begins with ``ipu.``.
        instruction: How the op enters a chain.
        codelet: What runs on the device.
        constraints: Conditions checked at import.
    """
    register(
        *(
            _record(target if target.startswith("ipu.") else f"aten.{target}", instruction, codelet, constraints)
            for target in targets.split()
        )
    )


def _register_arithmetic() -> None:
    register_maps("add.Tensor add.Scalar", scaled_sum(1), BINARY)
    register_maps("sub.Tensor sub.Scalar", scaled_sum(-1), BINARY)
    register_maps("rsub.Tensor rsub.Scalar", scaled_sum(-1, "other", "self"), BINARY)
    register_maps("mul.Tensor mul.Scalar", binary("mul"), BINARY)
    register_maps(
        "div.Tensor div.Scalar div.Tensor_mode div.Scalar_mode", divide, vector_map("BinaryOp1D<divide>", 21, 10)
    )
    register_maps("floor_divide floor_divide.Scalar", floor_divide, estimated_map("BinaryOp1D<floor_divide>", 23, 12))
    register_maps(
        "remainder.Tensor remainder.Scalar remainder.Scalar_Tensor", remainder,
        estimated_map("BinaryOp1D<remainder>", 25, 14),
    )
    register_maps("fmod.Tensor fmod.Scalar", binary("fmod"), estimated_map("BinaryOp1D<fmod>", 25, 14))
    register_maps("maximum", extreme("max", "b_or"), vector_map("BinaryOp1D<max>", 4, 3))
    register_maps("minimum", extreme("min", "b_and"), vector_map("BinaryOp1D<min>", 4, 3))
    register_maps("pow.Tensor_Tensor pow.Scalar", power, POWER)
    by_scalar = _record("aten.pow.Tensor_Scalar", power, POWER)
    register(replace(by_scalar, lower=_lower_power))
    register_maps("atan2", binary("atan2"), element_codelet("popops::BinaryOp1D<atan2>", 60, 400, source="estimate"))
    register_maps("fmax", binary("fmax", integer="max"), estimated_map("BinaryOp1D<fmax>", 12, 11))
    register_maps("fmin", binary("fmin", integer="min"), estimated_map("BinaryOp1D<fmin>", 12, 11))
    register_maps("hypot", binary("hypot"), estimated_map("BinaryOp1D<hypot>", 40, 22))
    register_maps("copysign.Tensor copysign.Scalar", binary("copysign"), estimated_map("BinaryOp1D<copysign>", 3, 3))
    register_maps("nextafter", nextafter, element_codelet("popops::NextAfter", 14, 12, source="estimate"))
    register_maps("heaviside", heaviside, estimated_map("Heaviside", 10, 9))
    register_maps("ldexp.Tensor", ldexp, estimated_map("LdExp", 9, 11))
    register_maps("gcd", binary("gcd"), element_codelet("popops::Gcd", 700, 700, source="estimate"))
    register_maps("lcm", binary("lcm"), element_codelet("popops::Lcm", 740, 740, source="estimate"))
    register_maps("addcmul", add_product, MULTIPLY_ADD)
    register_maps(
        "addcdiv", parametrised("addcdiv", "value", operands=("self", "tensor1", "tensor2")),
        estimated_map("AddCDiv", 24, 13),
    )
    lerp_scalar_or_tensor = parametrised("lerp", operands=("self", "end", "weight"))
    register_maps("lerp.Scalar lerp.Tensor", lerp_scalar_or_tensor, estimated_map("Lerp", 6, 6))


def _register_unary() -> None:
    # Cycles per half4 and per float2.
    published = {  # ipu_hardware.md 2.3
        "exp": (4, 6), "log": (4, 12), "sqrt": (23, 10), "rsqrt": (19, 8), "tanh": (4, 12),
        "sigmoid": (6, 12),
    }
    guessed = {  # a published function and a few steps around it
        "expm1": (6, 8), "exp2": (6, 8), "log1p": (6, 14), "log2": (6, 14), "log10": (6, 14), "sinh": (10, 20),
        "cosh": (10, 20), "atan": (60, 400), "asin": (60, 400), "acos": (60, 400), "erfc": (52, 82),
    }
    for name, (half, single) in published.items():
        register_maps(name, unary(name), vector_map(f"UnaryOp1D<{name}>", half, single))
    for name, (half, single) in guessed.items():
        register_maps(name, unary(name), estimated_map(f"UnaryOp1D<{name}>", half, single))
    register_maps("tan", unary("tan"), element_codelet("popops::UnaryOp1D<tan>", 5100, 5700))
    register_maps("reciprocal", unary("recip"), vector_map("UnaryOp1D<inverse>", 15, 6))
    register_maps("square", square, CHEAP)
    register_maps("erf special_erf", unary("erf"), element_codelet("popops::UnaryOp1D<erf>", 13, 41))
    for name, codelet in CIRCLE_FUNCTIONS.items():
        register_maps(name, unary(name), codelet)
    register_maps("neg", unary("neg", "l_neg"), CHEAP)
    register_maps("abs", unary("abs", "l_abs"), CHEAP)
    register_maps("sign sgn", unary("sign", "l_sign"), COMPARE)
    register_maps("deg2rad", scale(math.pi / 180), CHEAP)
    register_maps("rad2deg", scale(180 / math.pi), CHEAP)
    register_maps("frac", unary("frac"), estimated_map("UnaryOp1D<frac>", 4, 4))
    register_maps("round.decimals", round_decimals, estimated_map("RoundDecimals", 22, 14))
    register_maps("frexp.Tensor", frexp, element_codelet("popops::FrExp", 9, 8, source="estimate"))
    register_maps("angle", unary("angle"), estimated_map("UnaryOp1D<angle>", 12, 11))
    for name in ("floor", "ceil", "round", "trunc"):
        register_maps(name, unary(name, ""), CHEAP)
    register_maps("nan_to_num", nan_to_num, element_codelet("popops::NanToNum", 5, 5, source="estimate"))


HAS_BITS = Constraint(
    lambda op: not op.outputs[0].dtype.is_floating, "bits are combined of integers and bools, not of floats",
    "compare first, or look at the bits with Tensor.view(torch.int32)",
)


def _register_logic() -> None:
    for name in ("eq", "ne", "lt", "le"):
        register_maps(f"{name}.Scalar {name}.Tensor", compare(name), COMPARE)
    register_maps("gt.Scalar gt.Tensor", compare("lt", swap=True), COMPARE)
    register_maps("ge.Scalar ge.Tensor", compare("le", swap=True), COMPARE)
    for name in ("and", "or", "xor"):
        register_maps(f"logical_{name}", logical(name), BINARY)
        register_maps(
            f"bitwise_{name}.Tensor bitwise_{name}.Scalar bitwise_{name}.Scalar_Tensor", bitwise(name), BINARY,
            (HAS_BITS,),
        )
    register_maps("logical_not", logical_not, CHEAP)
    register_maps("bitwise_not", bitwise_not, CHEAP, (HAS_BITS,))
    for name, factor, symbol in (("left", "f_mul", "l"), ("right", "f_div", "r")):
        overloads = [f"bitwise_{name}_shift.{overload}" for overload in ("Tensor", "Tensor_Scalar", "Scalar_Tensor")]
        overloads += [f"__{symbol}shift__.{overload}" for overload in ("Tensor", "Scalar")]
        register_maps(" ".join(overloads), shift(name, factor), BINARY)
    register_maps("signbit", signbit, CHEAP)
    register_maps("isposinf", classify("isposinf"), COMPARE)
    register_maps("isneginf", classify("isneginf"), COMPARE)
    register_maps("isnan", classify("isnan"), COMPARE)
    register_maps("isinf", classify("isinf"), COMPARE)
    register_maps("where.self where.ScalarSelf where.ScalarOther where.Scalar", where(), SELECT)
    register_maps("masked_fill.Scalar masked_fill.Tensor", where("mask", "value", "self"), SELECT)


def _register_copies() -> None:
    register_maps("_to_copy ipu.cast", copy(), CAST)
    register_maps("copy", copy("src"), COPY_MAP)


_register_arithmetic()
_register_unary()
_register_logic()
_register_copies()
