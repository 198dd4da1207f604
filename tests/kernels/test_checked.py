"""The checked flavour of the kernels ends the process where one leaves its memory: see ``make checked``."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from torchipu._kernels.abi import CHECKED

pytestmark = pytest.mark.skipif(
    os.environ.get("TORCHIPU_CHECKED") != "1", reason="the kernels are the plain ones: make checked runs this test",
)

PREAMBLE = """
import numpy as np
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

def accumulate_array(count, room):
    total, addend = np.zeros(count, np.float32), np.zeros(room, np.float32)
    run_kernel(ACCUMULATE, [total.ctypes.data, addend.ctypes.data], UpdateInts(count, halves=0))

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


def test_the_kernels_are_those_that_were_built_to_be_checked() -> None:
    assert CHECKED


FENCED = "words = torch.zeros(256, dtype=torch.int32); fence(words.data_ptr(), 1024, [(0, 4 * 199)]); "


ACCESSES = {
    "write": (
        "fill(torch.empty(199, dtype=torch.int32), 199)", "fill(torch.empty(199, dtype=torch.int32), 200)",
        ("heap-buffer-overflow", "WRITE of size", "random_words"),
    ),
    "masked read": (
        "accumulate(43, 43)", "accumulate(43, 42)", ("heap-buffer-overflow", "READ of size", "accumulate"),
    ),
    # As small as what Python would take from its own allocator, which is not looked into.
    "array of NumPy's": (
        "accumulate_array(43, 43)", "accumulate_array(43, 42)", ("heap-buffer-overflow", "READ of size", "accumulate"),
    ),
    "scratch": (
        "run_op('aten.sort.default', torch.randn(3, 500), planner=Planner())",
        "Planner.share = 8; run_op('aten.sort.default', torch.randn(3, 500), planner=Planner())",
        ("use-after-poison", "sort"),
    ),
    "fence": (f"{FENCED}fill(words, 199)", f"{FENCED}fill(words, 200)", ("use-after-poison", "random_words")),
    # What it is called depends on how much of the widest vector is past the end.
    "arena of a program": (PROGRAM.format(shift=0), PROGRAM.format(shift=4), ()),
}
"""What stays within its memory, what does not, and words of the report."""
EACH_IN_A_FORK = """
import json, os, sys

def ended(script, folder):
    if (child := os.fork()) == 0:
        for descriptor, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(os.path.join(folder, name), os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
        exec(script, globals())
        print("lived", flush=True)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return [status, *(open(os.path.join(folder, name)).read() for name in ("out", "err"))]

print(json.dumps([[ended(script, sys.argv[1]) for script in pair] for pair in json.load(sys.stdin)]))
"""


@pytest.fixture(scope="module")
def endings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[list[Any]]]:
    """Return status, output and report of all scripts: importing torch takes most of the time of one."""
    done = subprocess.run(
        [sys.executable, "-c", PREAMBLE + EACH_IN_A_FORK, str(tmp_path_factory.mktemp("accesses"))],
        input=json.dumps([access[:2] for access in ACCESSES.values()]), capture_output=True, text=True, timeout=500,
    )
    assert done.returncode == 0, done.stderr
    return dict(zip(ACCESSES, json.loads(done.stdout), strict=True))


@pytest.mark.parametrize("name", ACCESSES)
def test_an_access_past_the_end_is_reported(name: str, endings: dict[str, list[list[Any]]]) -> None:
    (status, output, error), wrong = endings[name]
    assert (status, output) == (0, "lived\n"), error
    assert wrong[0] != 0
    assert wrong[1] == ""
    for words in ("ERROR: AddressSanitizer", *ACCESSES[name][2]):
        assert words in wrong[2]
