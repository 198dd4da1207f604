"""Errors: the layout of their text and the built-in types that they also are."""

from __future__ import annotations

import pickle

import pytest

from torchipu import errors


def test_text_lays_out_all_facts() -> None:
    error = errors.UnsupportedOpError(
        "aten.cumprod.default has no lowering for the IPU", op="%41: half[32,128] = cumprod(%40) {dim=-1}",
        source="model.py:57  p = torch.cumprod(x, -1)", block="B2 (ipu 1, stage 1, forward)",
        remedy="use exp(cumsum(log(x)))", detail="first row\nsecond row",
    )
    assert str(error) == """\
aten.cumprod.default has no lowering for the IPU
  op      %41: half[32,128] = cumprod(%40) {dim=-1}
  source  model.py:57  p = torch.cumprod(x, -1)
  block   B2 (ipu 1, stage 1, forward)
  first row
  second row
  do      use exp(cumsum(log(x)))"""


def test_message_alone_is_one_line() -> None:
    assert str(errors.IpuError("nothing else is known")) == "nothing else is known"


@pytest.mark.parametrize(("kind", "base"), [
    (errors.OptionsError, ValueError), (errors.UnsupportedOpError, NotImplementedError),
    (errors.UnsupportedOpError, errors.CaptureError), (errors.ConstraintError, ValueError),
    (errors.OutOfTileMemoryError, MemoryError), (errors.VerifyError, AssertionError),
])
def test_error_is_also_a_builtin_error(kind: type, base: type) -> None:
    assert issubclass(kind, base)
    assert issubclass(kind, errors.IpuError)


def test_nearest_names_a_close_spelling_only() -> None:
    assert errors.nearest("sharde", ["pipelined", "sharded"]) == "; did you mean 'sharded'?"
    assert errors.nearest("zzz", ["pipelined", "sharded"]) == ""


def test_verify_error_names_the_pass_and_asks_for_a_report() -> None:
    text = str(errors.VerifyError("tensor %x is made more than once", after="placement", context="-> line"))
    assert text.splitlines()[0] == "invariant broken after pass 'placement': tensor %x is made more than once"
    assert "  -> line" in text.splitlines()
    assert "report it" in text


def test_out_of_memory_error_keeps_its_numbers() -> None:
    error = errors.OutOfTileMemoryError("too full", ipu=1, tile=7, needed_bytes=12, available_bytes=10)
    assert (error.ipu, error.tile, error.needed_bytes, error.available_bytes) == (1, 7, 12, 10)


@pytest.mark.parametrize("error", [
    errors.PlacementError("block 'B' is unknown", remedy="name it"),
    errors.OptionsError("option 'seed' is odd", option="seed", value=3, allowed="even numbers"),
    errors.OutOfTileMemoryError("too full", ipu=1, tile=7, needed_bytes=12, available_bytes=10),
    errors.VerifyError("a breach", after="placement", context="-> line"),
])
def test_error_survives_pickling(error: errors.IpuError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)
    assert copy.args == error.args
