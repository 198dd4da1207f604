"""Assertions as torch's operators: what asks for them, and in which words they fail."""

from __future__ import annotations

from torchipu.ir.graph import Op

TARGETS = ("aten._assert_async.default", "aten._assert_async.msg")
"""Operators that take a condition and give nothing."""


def is_assertion(op: Op) -> bool:
    """Whether an op ends the run where its operand is false."""
    return op.target in TARGETS


def words_of(op: Op) -> str:
    """Return what the user says of an assertion; what eager says where that is nothing."""
    return op.text("assert_msg", "") or "Expected Tensor with single nonzero value, but got zero"
