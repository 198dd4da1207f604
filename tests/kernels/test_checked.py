"""The checked flavour of the kernels ends the process where one leaves its memory: see ``make checked``."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import torchipu
from tests.kernels.elem_planner import MiniPlanner, run_op
from torchipu._kernels.abi import CHECKED, fence, run_kernel
from torchipu._kernels.table.random import RANDOM_WORDS, RandomInts
from torchipu._kernels.table.update import ACCUMULATE, UpdateInts
from torchipu.host.bound_plan import ARENA, BoundPlan

pytestmark = pytest.mark.skipif(
    os.environ.get("TORCHIPU_CHECKED") != "1", reason="the kernels are the plain ones: make checked runs this test",
)


def fill(words: torch.Tensor, count: int) -> None:
    state = torch.tensor([1234, 0, 7, 0])
    run_kernel(RANDOM_WORDS, [words.data_ptr(), state.data_ptr()], RandomInts(count), items=4)


def write(count: int) -> None:
    fill(torch.empty(199, dtype=torch.int32), count)


def write_behind_a_fence(count: int) -> None:
    words = torch.zeros(256, dtype=torch.int32)
    fence(words.data_ptr(), 1024, [(0, 4 * 199)])
    fill(words, count)


def accumulate(room: int) -> None:
    total, addend = torch.zeros(43), torch.zeros(room)
    run_kernel(ACCUMULATE, [total.data_ptr(), addend.data_ptr()], UpdateInts(43, halves=0))


def accumulate_array(room: int) -> None:
    """As small as what Python would take from its own allocator, which is not looked into."""
    total, addend = np.zeros(43, np.float32), np.zeros(room, np.float32)
    run_kernel(ACCUMULATE, [total.ctypes.data, addend.ctypes.data], UpdateInts(43, halves=0))


def sort(share: int) -> None:
    """Sort with a part of the scratch memory."""

    class Planner(MiniPlanner):
        def step(self, *args: Any, scratch_bytes: int = 0, **kwargs: Any) -> None:
            super().step(*args, scratch_bytes=scratch_bytes // share, **kwargs)

    run_op("aten.sort.default", torch.randn(3, 500), planner=Planner())


def run(shift: int) -> None:
    """Run a program on an arena whose places are all shifted by some bytes."""
    address = BoundPlan._address

    def shifted(plan: BoundPlan, held: Any, num_inputs: int) -> Any:
        buffer, offset = address(plan, held, num_inputs)
        return buffer, offset + shift * (buffer == ARENA)

    BoundPlan._address = shifted  # type: ignore[method-assign]
    model = nn.Sequential(nn.Linear(5, 16), nn.Softmax(-1), nn.Linear(16, 3))
    torchipu.InferenceStep(model.eval())(torch.randn(2, 5))


@pytest.fixture(scope="module")
def imported() -> None:
    """Import what a compilation needs once, and not in each fork."""
    torchipu.InferenceStep(nn.Linear(2, 2).eval())(torch.randn(2, 2))


def test_the_kernels_are_those_that_were_built_to_be_checked() -> None:
    assert CHECKED


@pytest.mark.usefixtures("imported")
@pytest.mark.parametrize(("access", "within", "past", "told"), [
    pytest.param(write, 199, 200, ("heap-buffer-overflow", "WRITE of size", "random_words"), id="write"),
    pytest.param(accumulate, 43, 42, ("heap-buffer-overflow", "READ of size", "accumulate"), id="masked read"),
    pytest.param(accumulate_array, 43, 42, ("heap-buffer-overflow", "READ of size", "accumulate"), id="array of NumPy"),
    pytest.param(sort, 1, 8, ("use-after-poison", "sort"), id="scratch"),
    pytest.param(write_behind_a_fence, 199, 200, ("use-after-poison", "random_words"), id="fence"),
    # What it is called depends on how much of the widest vector is past the end.
    pytest.param(run, 0, 4, (), id="arena of a program"),
])
def test_an_access_past_the_end_is_reported(
    access: Callable[[int], None], within: int, past: int, told: tuple[str, ...], tmp_path: Path,
) -> None:
    status, output, report = ended(access, within, tmp_path)
    assert (status, output) == (0, "lived\n"), report
    status, output, report = ended(access, past, tmp_path)
    assert status != 0
    assert output == ""
    for words in ("ERROR: AddressSanitizer", *told):
        assert words in report


def ended(access: Callable[[int], None], value: int, folder: Path) -> tuple[int, str, str]:
    """Return status, output and report of a fork of this process that makes an access."""
    if (child := os.fork()) == 0:
        try:
            for descriptor, name in ((1, "output"), (2, "report")):
                os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
            access(value)
            os.write(1, b"lived\n")
            os._exit(0)
        except BaseException:
            os.write(2, traceback.format_exc().encode())
        finally:
            os._exit(1)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return status, *((folder / name).read_text() for name in ("output", "report"))  # type: ignore[return-value]
