"""The checked flavour of the kernels ends the process where one leaves its memory: see ``make checked``."""

import os
import subprocess
import sys

import pytest

from torchipu._kernels.abi import CHECKED

pytestmark = pytest.mark.skipif(
    os.environ.get("TORCHIPU_CHECKED") != "1", reason="the kernels are the plain ones: make checked runs this test",
)

PREAMBLE = """
import torch
from tests.kernels.elem_planner import MiniPlanner, run_op
from torchipu._kernels.abi import fence, run_kernel
from torchipu._kernels.table.random import RANDOM_WORDS, RandomInts
from torchipu._kernels.table.update import ACCUMULATE, UpdateInts

def fill(words, count):
    state = torch.tensor([1234, 0, 7, 0])
    run_kernel(RANDOM_WORDS, [words.data_ptr(), state.data_ptr()], RandomInts(count), items=4)

def accumulate(count, room):
    total, addend = torch.zeros(count), torch.zeros(room)
    run_kernel(ACCUMULATE, [total.data_ptr(), addend.data_ptr()], UpdateInts(count, halves=0))

class Planner(MiniPlanner):
    share = 1
    def step(self, *args, scratch_bytes=0, **kwargs):
        super().step(*args, scratch_bytes=scratch_bytes // self.share, **kwargs)

"""
PROGRAM = """
import torchipu
from torch import nn
from torchipu.host.bound_plan import ARENA, BoundPlan

address = BoundPlan._address
def shifted(plan, held, num_inputs):
    buffer, offset = address(plan, held, num_inputs)
    return buffer, offset + {shift} * (buffer == ARENA)

BoundPlan._address = shifted
model = nn.Sequential(nn.Linear(5, 16), nn.Softmax(-1), nn.Linear(16, 3))
torchipu.InferenceStep(model.eval())(torch.randn(2, 5))
"""


def run(script: str) -> subprocess.CompletedProcess[str]:
    script = f"{PREAMBLE}{script}\nprint('lived')"
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=500)


def test_the_kernels_are_those_that_were_built_to_be_checked() -> None:
    assert CHECKED


FENCED = "words = torch.zeros(256, dtype=torch.int32); fence(words.data_ptr(), 1024, [(0, 4 * 199)]); "


@pytest.mark.parametrize(("right", "wrong", "report"), [
    pytest.param(
        "fill(torch.empty(199, dtype=torch.int32), 199)", "fill(torch.empty(199, dtype=torch.int32), 200)",
        ("heap-buffer-overflow", "WRITE of size", "random_words"), id="write",
    ),
    pytest.param(
        "accumulate(43, 43)", "accumulate(43, 42)", ("heap-buffer-overflow", "READ of size", "accumulate"),
        id="masked read",
    ),
    pytest.param(
        "run_op('aten.sort.default', torch.randn(3, 500), planner=Planner())",
        "Planner.share = 8; run_op('aten.sort.default', torch.randn(3, 500), planner=Planner())",
        ("use-after-poison", "sort"), id="scratch",
    ),
    pytest.param(
        f"{FENCED}fill(words, 199)", f"{FENCED}fill(words, 200)", ("use-after-poison", "random_words"), id="fence",
    ),
    # What it is called depends on how much of the widest vector is past the end.
    pytest.param(PROGRAM.format(shift=0), PROGRAM.format(shift=4), (), id="arena of a program"),
])
def test_an_access_past_the_end_is_reported(right: str, wrong: str, report: tuple[str, ...]) -> None:
    lived = run(right)
    assert (lived.returncode, lived.stdout) == (0, "lived\n"), lived.stderr
    ended = run(wrong)
    assert ended.returncode != 0
    assert ended.stdout == ""
    for words in ("ERROR: AddressSanitizer", *report):
        assert words in ended.stderr
