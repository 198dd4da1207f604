"""Special functions: elementwise, rare, most of them computed one element at a time in double on the host.

No source gives cycles for any of them: the estimates count what a usual implementation in single precision does, with
logarithms, exponentials and divisions at the cost of their own codelets.
"""

from __future__ import annotations

import math

from torchipu.device.codelets import element_codelet
from torchipu.ir.graph import Op
from torchipu.ops.elementwise import binary, estimated_map, parametrised, register_maps, unary
from torchipu.optable.chain import Chain, Value
from torchipu.optable.codelet import Codelet

POLYNOMIALS = {
    **{f"{prefix}chebyshev_polynomial_{letter}": f"{prefix}chebyshev_{letter}"
       for prefix in ("", "shifted_") for letter in "tuvw"},
    "hermite_polynomial_h": "hermite_h", "hermite_polynomial_he": "hermite_he", "laguerre_polynomial_l": "laguerre",
    "legendre_polynomial_p": "legendre",
}
# Cycles for an element, from half and from float operands: the arithmetic is the same in both.
UNARY_CYCLES = {
    "asinh": 24, "acosh": 22, "atanh": 20, "erfinv": 40, "special_erfcx": 60, "special_ndtri": 70,
    "special_log_ndtr": 90, "lgamma": 110, "digamma": 120, "i0": 60, "special_i0e": 60, "special_i1": 60,
    "special_i1e": 60, "special_modified_bessel_i0": 60, "special_modified_bessel_i1": 60,
    "special_modified_bessel_k0": 90, "special_modified_bessel_k1": 90, "special_scaled_modified_bessel_k0": 90,
    "special_scaled_modified_bessel_k1": 90, "special_bessel_j0": 120, "special_bessel_j1": 120,
    "special_bessel_y0": 160, "special_bessel_y1": 160, "special_spherical_bessel_j0": 2320, "special_airy_ai": 180,
}
INSTRUCTIONS = {
    "special_modified_bessel_i0": "i0", "special_modified_bessel_i1": "i1", "special_modified_bessel_k0": "k0",
    "special_modified_bessel_k1": "k1", "special_scaled_modified_bessel_k0": "k0e",
    "special_scaled_modified_bessel_k1": "k1e", "special_airy_ai": "airy",
    **{f"special_bessel_{name}": name for name in ("j0", "j1", "y0", "y1")},
    "special_spherical_bessel_j0": "spherical_j0",
}

NAMED_X = frozenset([
    "special_airy_ai", "special_scaled_modified_bessel_k0", "special_scaled_modified_bessel_k1",
    "special_spherical_bessel_j0",
])
"""Those whose schema calls the operand ``x``."""


def multivariate_lgamma(chain: Chain, op: Op) -> Value:
    """Logarithm of the multivariate gamma function: a sum of ``p`` logarithms of the plain one."""
    value, p = chain.argument(op, "self", "f"), op.integer("p")
    total = chain.scalar(p * (p - 1) / 4 * math.log(math.pi), "f")
    for index in range(p):
        shifted = chain.run("f_sub", value, chain.scalar(0.5 * index, "f"))
        total = chain.run("f_add", chain.run("f_lgamma", shifted), total)
    return total


def _elements(name: str, cycles: float) -> Codelet:
    return element_codelet(f"popops::{name}", cycles, cycles, code_bytes=1200, source="estimate")


def _register() -> None:
    for name, cycles in UNARY_CYCLES.items():
        instruction = INSTRUCTIONS.get(name, name.removeprefix("special_"))
        build = parametrised(instruction, operands=("x" if name in NAMED_X else "self",))
        register_maps(name, build, _elements(f"UnaryOp1D<{instruction}>", cycles))
    register_maps("sinc", unary("sinc"), element_codelet("popops::Sinc", 45, 2310, source="estimate"))
    register_maps("special_entr", unary("entr"), estimated_map("Entr", 14, 20))
    register_maps("polygamma", parametrised("polygamma", "n"), _elements("Polygamma", 3200))
    register_maps("mvlgamma", multivariate_lgamma, _elements("MultivariateLgamma", 250))
    register_maps("igamma", binary("igamma"), _elements("BinaryOp1D<igamma>", 900))
    register_maps("igammac", binary("igammac"), _elements("BinaryOp1D<igammac>", 900))
    operands = "special_zeta special_zeta.self_scalar special_zeta.other_scalar"
    register_maps(operands, binary("zeta"), _elements("BinaryOp1D<zeta>", 3100))
    register_maps("logaddexp", binary("logaddexp"), estimated_map("LogAddExp", 16, 28))
    register_maps("logaddexp2", binary("logaddexp2"), estimated_map("LogAddExp2", 18, 30))
    register_maps("xlogy.Tensor xlogy.Scalar_Self xlogy.Scalar_Other", binary("xlogy"), estimated_map("XLogY", 16, 22))
    operands = "special_xlog1py special_xlog1py.self_scalar special_xlog1py.other_scalar"
    register_maps(operands, binary("xlog1py"), estimated_map("XLog1pY", 18, 24))
    for name, instruction in POLYNOMIALS.items():
        overloads = " ".join(f"special_{name}.{overload}" for overload in ("default", "x_scalar", "n_scalar"))
        # Degrees lie around ten; a step of the recurrence takes two products and a sum.
        register_maps(overloads, binary(instruction, "x", "n"), _elements(f"BinaryOp1D<{instruction}>", 60))


_register()
