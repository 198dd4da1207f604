"""What an op says of itself, with its type, and what is wrong with it otherwise."""

import pytest

from torchipu.errors import VerifyError
from torchipu.ir.graph import Op, Tensor
from torchipu.ir.types import DType


def op(**attrs):
    return Op("k", (), (Tensor("y", (2,), DType.FLOAT),), attrs, target="aten.k.default")


def test_each_attribute_has_its_type():
    one = op(dim=3, alpha=0.5, train=True, how="mean", dims=[1, -1], flags=(True, False), pair=2, absent=None)
    assert (one.integer("dim"), one.number("alpha"), one.number("dim"), one.flag("train")) == (3, 0.5, 3, True)
    assert (one.text("how"), one.integers("dims"), one.flags("flags")) == ("mean", (1, -1), (True, False))
    assert one.integers("pair") == (2,)
    assert one.given("dim")
    assert not one.given("absent")


def test_what_is_absent_or_none_is_the_default():
    one = op(absent=None)
    assert (one.integer("absent", 4), one.number("other", 0.5), one.flag("other"), one.text("other", None)) == (
        4, 0.5, False, None,
    )
    assert one.integers("other", (0, 1)) == (0, 1)


@pytest.mark.parametrize(("read", "message"), [
    (lambda one: one.integer("alpha"), r"aten\.k\.default: attribute 'alpha' must be an integer, got 0\.5"),
    (lambda one: one.integer("dims"), r"attribute 'dims' must be an integer, got \[1, 'x'\]"),
    (lambda one: one.integers("dims"), r"attribute 'dims' must be integers, got \[1, 'x'\]"),
    (lambda one: one.flag("alpha"), "attribute 'alpha' must be a bool"),
    (lambda one: one.text("alpha"), "attribute 'alpha' must be a string"),
    (lambda one: one.number("missing"), "attribute 'missing' is missing: expected a number"),
    (lambda one: one.needed("self"), "operand 'self' is missing"),
])
def test_what_is_missing_or_of_another_type_is_named(read, message):
    with pytest.raises(VerifyError, match=message):
        read(op(alpha=0.5, dims=[1, "x"]))
