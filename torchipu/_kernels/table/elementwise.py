"""The kernel that interprets chains of elementwise instructions, and what they are called.

The letter before the underscore of an instruction is the class of its result: ``f`` a float32 register, ``l`` one of
int64, ``b`` one of booleans (a byte each, 0 or 1), ``i``, ``s`` and ``c`` one of integers of 32, 16 and 8 bits.
"""

from enum import IntEnum
from typing import NamedTuple

from .kernel import Kernel

NARROW_OPS = (
    *(f"{width}_{name}" for width in "isc" for name in (
        "add", "sub", "mul", "neg", "not", "and", "or", "xor", "abs", "max", "min", "shift_left", "shift_right",
        "from_f",
    )),
    *(f"b_{name}_{width}" for width in "isc" for name in ("eq", "ne", "lt", "le", "from")),
    *(f"f_from_{width}" for width in "iscu"), "c_max_u", "c_min_u", "c_shift_right_u", "b_lt_u", "b_le_u",
    "s_copy", "s_where", "i_from_b", "s_from_b", "s_relu", "s_relu_grad",
)
"""Instructions that take integers of 32, 16 and 8 bits; ``u`` stands for bytes without a sign."""
VECTOR_OPS = (
    "x_load", "x_store", "x_load_pair", "x_store_pair", "x_multiply_pairs", "x_round_store",
    "f_round_by", "f_copy", "l_copy", "b_copy",
    "f_from_l", "f_from_b",
    "l_from_f", "l_from_b", "b_from_f", "b_from_l", "f_round_half", "l_wrap_int", "l_wrap_short", "l_wrap_char",
    "l_wrap_uchar", "f_add", "f_sub", "f_mul", "f_div", "f_max", "f_min", "f_pow", "f_add_scaled", "f_fma3",
    "f_addcdiv", "f_lerp", "f_neg", "f_abs", "f_sign", "f_exp", "f_expm1", "f_log", "f_log1p", "f_log2", "f_log10",
    "f_sqrt", "f_rsqrt", "f_recip", "f_square", "f_cube", "f_sin", "f_cos", "f_tanh", "f_sigmoid", "f_erf", "f_exp2",
    "f_floor", "f_ceil", "f_round", "f_trunc", "f_relu", "f_leaky_relu", "f_elu", "f_gelu", "f_gelu_tanh", "f_silu",
    "f_mish", "f_softplus", "f_log_sigmoid", "f_hardsigmoid", "f_hardswish", "f_clamp", "f_clamp_min", "f_clamp_max",
    "f_threshold", "f_nan_to_num", "f_threshold_grad", "f_gelu_grad", "f_gelu_tanh_grad", "f_silu_grad",
    "f_sigmoid_grad", "f_tanh_grad", "f_hardtanh_grad", "f_hardsigmoid_grad", "f_hardswish_grad", "f_softplus_grad",
    "f_leaky_relu_grad", "f_elu_grad", "f_elu_result_grad", "f_dropout_grad", "f_log_sigmoid_grad", "f_where",
    "l_where", "b_where", "b_eq_f", "b_ne_f", "b_lt_f", "b_le_f", "b_eq_l", "b_ne_l", "b_lt_l", "b_le_l", "b_isnan",
    "b_isinf", "b_isfinite", "b_and", "b_or", "b_xor", "b_not", "l_add", "l_sub", "l_mul", "l_neg", "l_abs", "l_sign",
    "l_max", "l_min", "l_and", "l_or", "l_xor", "l_not", "f_copysign", "f_fmax", "f_fmin", "f_frac", "f_heaviside",
    "f_angle", "f_logit", "f_logit_grad", "f_logaddexp", "f_logaddexp2", "f_xlogy", "f_xlog1py", "f_entr", "f_sinc",
    "f_hardshrink", "f_softshrink", "f_shrink_grad", "f_mish_grad", "f_prelu", "f_prelu_grad", "f_prelu_weight_grad",
    "f_glu", "f_glu_gate_grad", "b_signbit", "b_isposinf", "b_isneginf", "b_signbit_l", "f_fmod", "f_remainder",
    "f_floor_div", "f_atan2", "f_tan", "f_atan", "f_asin", "f_acos", "f_sinh", "f_cosh", "f_erfc", "f_hypot",
    "f_nextafter", "f_asinh", "f_acosh", "f_atanh", "f_erfinv", "f_ndtri", "f_lgamma", "f_digamma",
    "f_i0", "f_i0e", "f_i1", "f_i1e",
    "l_floor_div", "l_trunc_div", "l_remainder", "l_fmod", "l_shift_left", "l_shift_right", *NARROW_OPS,
)
"""Instructions that take vectors of elements."""
SCALAR_OPS = (
    "l_pow", "f_frexp", "l_frexp_exponent", "l_gcd", "l_lcm", "f_nextafter_half", "f_erfcx", "f_log_ndtr",
    "f_polygamma", "f_zeta", "f_igamma", "f_igammac", "f_k0", "f_k1", "f_k0e",
    "f_k1e", "f_j0", "f_j1", "f_y0", "f_y1", "f_spherical_j0", "f_airy", "f_chebyshev_t", "f_chebyshev_u",
    "f_chebyshev_v", "f_chebyshev_w", "f_shifted_chebyshev_t", "f_shifted_chebyshev_u", "f_shifted_chebyshev_v",
    "f_shifted_chebyshev_w", "f_hermite_h", "f_hermite_he", "f_laguerre", "f_legendre",
)
"""Instructions that take their elements one at a time."""
OPERATIONS = {name: number for number, name in enumerate(VECTOR_OPS + SCALAR_OPS)}
"""The number of each instruction."""
SCALAR_OPERATIONS = frozenset(SCALAR_OPS)

MAX_DIMS = 8
MAX_SLOTS = 256


class SlotKind(IntEnum):
    """What a slot of a chain is."""

    DIRECT = 0  # an argument that is read or written in place: row-major, of a register's type
    REGISTER = 1  # in the scratch
    CONSTANT = 2  # repeated in the scratch
    UNIFORM = 3  # one element of an argument, repeated in the scratch
    WALK = 4  # an argument that x_load and x_store move by its strides, with a conversion; or a pair of these


class ChainSlot(NamedTuple):
    """A slot.

    Attributes:
        kind: What it is.
        argument: Which one, where it is one.
        dtype: Its element type.
        offset: Bytes into the scratch, where it lies there.
        num_dims: Dimensions of an argument that is walked.
        shape: Of such an argument; of a constant its value, if that is an integer, and the place of it among the
            scalars.
        strides: Of such an argument.
    """

    kind: SlotKind
    argument: int
    dtype: int
    offset: int
    num_dims: int
    shape: tuple[int, int, int, int, int, int, int, int]
    strides: tuple[int, int, int, int, int, int, int, int]


class ChainInstruction(NamedTuple):
    """An instruction.

    f_round_by takes the words of a random op as b, or a twice to round to nearest, and what becomes of an overflow as
    its scalar; x_round_store does the same straight into row-major halves. x_load_pair brings a and b, whose elements
    take turns in memory as parts of complex numbers do, to the registers result and c; x_store_pair takes the registers
    a and b to result and c. x_multiply_pairs stores the product of two complex numbers, whose parts take turns in
    memory from a and from b on, to result and c; its scalars are -1 for one that is conjugated, 1 for others.

    Attributes:
        operation: Its number.
        result: Slot.
        a: Slot of the first operand.
        b: Of the second.
        c: Of the third.
        scalar: Place of the first of its scalars.
    """

    operation: int
    result: int
    a: int
    b: int
    c: int
    scalar: int


class ChainInts(NamedTuple):
    """Integers of ``chain``.

    Attributes:
        elements: Of the iteration space.
        block: Elements of an item.
        num_slots: How many there are, at most MAX_SLOTS.
        num_instructions: How many there are.
        program: The numbers of each `ChainSlot`, then those of each `ChainInstruction`.
    """

    elements: int
    block: int
    num_slots: int
    num_instructions: int
    program: tuple[int, ...]


class ChainScalars(NamedTuple):
    """Real numbers of ``chain``.

    Attributes:
        constants: Of slots and instructions, padded by three.
    """

    constants: tuple[float, ...]


CHAIN = Kernel(
    "chain", {"arguments*": "the operands and results that the slots name"}, ChainInts, ChainScalars, items="blocks",
    scratch="registers",
)


class ChainFoldInts(NamedTuple):
    """Integers of ``chain_fold``.

    Attributes:
        folding: What becomes of the values: a `Folding`.
        out: Which argument takes the results.
        value: Slot of the value that is reduced.
        other: Slot of what goes with it, -1 for nothing: of products the sum is taken, of differences the sum of
            squares or of magnitudes.
        length: Elements of a row, or, where there are columns, rows down which is reduced.
        results: Rows, or stacks of columns.
        columns: Elements side by side down which is reduced; 0 where rows are reduced.
        chunk: Elements of a row, or rows, of an item.
        chunks: Into which they are cut.
        together: Rows of an item; 0 where a row may be longer than a block, or is cut into chunks.
        root: Whether the square root of the result is taken, after the scale.
        near_bytes: Where scratch has room for sums of columns.
        block: Elements that a register holds.
        num_slots: As of ``chain``.
        num_instructions: Likewise.
        program: Likewise.
    """

    folding: int
    out: int
    value: int
    other: int
    length: int
    results: int
    columns: int
    chunk: int
    chunks: int
    together: int
    root: bool
    near_bytes: int
    block: int
    num_slots: int
    num_instructions: int
    program: tuple[int, ...]


class ChainFoldScalars(NamedTuple):
    """Real numbers of ``chain_fold``.

    Attributes:
        scale: Multiplies the results.
        constants: Of slots and instructions, padded by three.
    """

    scale: float
    constants: tuple[float, ...]


CHAIN_FOLD = Kernel(
    "chain_fold", {"arguments*": "the operands and results that the slots name, and what takes the reduced value"},
    ChainFoldInts, ChainFoldScalars, items="groups of rows; rows * chunks; stacks * panels of a block * chunks",
    scratch="registers, and sums of columns",
)
"""A chain of which one value is reduced as it comes, to [rows][chunks] or [chunks][stacks][columns]."""
