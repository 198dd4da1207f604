"""What adds a bias to a product: a compute set of its own, behind those of the product."""

from dataclasses import replace

import torchipu.ops  # noqa: F401  registers the records
from tests.placed_graphs import op, tensor
from torchipu.ir.types import DType
from torchipu.optable.spec import spec_of
from torchipu.target import lookup_target

MK2 = lookup_target("mk2")
ROWS, INNER, COLUMNS = 1024, 1024, 4096


def half(name, *shape):
    return tensor(name, *shape, dtype=DType.HALF)


def sets_of(kind, names, inputs, beta=1):
    made = replace(
        op(kind, (), half("y", ROWS, COLUMNS)), inputs=inputs, operands=names, target=f"aten.{kind}.default",
        attrs={"beta": beta},
    )
    return spec_of(made).lower(made, MK2)


def added(*shape, beta=1):
    factors = half("x", ROWS, INNER), half("w", INNER, COLUMNS)
    plain = sets_of("mm", ("self", "mat2"), factors)
    return sets_of("addmm", ("self", "mat1", "mat2"), (half("b", *shape), *factors), beta)[len(plain) :]


def test_bias_is_fetched_and_added_behind_the_product():
    (addition,) = added(COLUMNS)
    assert (addition.codelet.name, addition.elements) == ("popops::BroadcastVectorInner<add>", ROWS * COLUMNS)
    # 2,852 halves of the results lie on the busiest tile, and each takes another element of the bias.
    assert addition.gathered_bytes == 2 * 2852
    assert addition.codelet.cycles(MK2, addition.work(2852)) == 15 + 6 * (26 + 2 * 119)


def test_addend_of_the_shape_of_the_result_lies_where_that_does():
    (addition,) = added(ROWS, COLUMNS)
    assert (addition.codelet.name, addition.gathered_bytes) == ("popops::ScaledAdd<fast>", 0)


def test_addend_times_zero_is_not_added():
    assert added(COLUMNS, beta=0) == ()
