"""The engine: order of steps, traps, callbacks, threads and forks."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from torchipu._kernels.abi import KernelTrap, Plan, are_row_major
from torchipu._kernels.table.copy import FILL, FillInts
from torchipu.errors import ExecutionError
from torchipu.host.bound_plan import FIRST_EXTERNAL, BoundPlan
from torchipu.host.executor import GraphExecutor
from torchipu.host.planner import Planner
from torchipu.ir.graph import Graph, Op, Tensor
from torchipu.ir.types import DType


def op(target: str, inputs: tuple[Tensor, ...], output: Tensor, operands: tuple[str, ...], **attrs: object) -> Op:
    return Op(target.split(".")[1], inputs, (output,), attrs, target, operands)


def linear_relu(rows: int = 64) -> Graph:
    """``relu(x @ w).sum()`` and what comes before the sum."""
    x, w = Tensor("x", (rows, 96), DType.FLOAT), Tensor("w", (96, 80), DType.FLOAT)
    product, activation = Tensor("product", (rows, 80), DType.FLOAT), Tensor("activation", (rows, 80), DType.FLOAT)
    total = Tensor("total", (80,), DType.FLOAT)
    return Graph("g", (x, w), (activation, total), (
        op("aten.mm.default", (x, w), product, ("self", "mat2")),
        op("aten.relu.default", (product,), activation, ("self",)),
        op("aten.sum.dim_IntList", (activation,), total, ("self",), dim=[0], keepdim=False, dtype=None),
    ))


def lookup_rows() -> Graph:
    table, ids = Tensor("table", (5, 8), DType.FLOAT), Tensor("ids", (3,), DType.LONG)
    rows = Tensor("rows", (3, 8), DType.FLOAT)
    attrs = {"padding_idx": -1, "scale_grad_by_freq": False, "sparse": False}
    return Graph("g", (table, ids), (rows,), (
        op("aten.embedding.default", (table, ids), rows, ("weight", "indices"), **attrs),
    ))


def recorder(plan: Plan, names: str) -> list[str]:
    """Add a callback for each name, which appends it to the list returned."""
    ran: list[str] = []
    for name in names:
        plan.add_callback(lambda name=name: ran.append(name))
    return ran


def test_prologue_body_and_update_run_in_the_order_of_the_loops() -> None:
    plan = Plan(0)
    ran = recorder(plan, "pbcu")
    plan.run((0, 1), (1, 3), (3, 4), 2, 3, 1)
    assert "".join(ran) == "pbcbcu" * 3


def test_random_counters_advance_once_a_micro_batch() -> None:
    plan = Plan(0)
    counters = torch.zeros(2, 4, dtype=torch.int64)
    seen: list[list[int]] = []
    plan.add_callback(lambda: seen.append(counters[:, 3].tolist()))
    plan.run((0, 0), (0, 1), (1, 1), 2, 2, 1, counters.data_ptr(), 2)
    assert seen == [[n, n] for n in range(4)]
    assert counters[:, :3].count_nonzero() == 0


def test_an_exception_of_a_callback_ends_the_run_and_reaches_the_caller() -> None:
    plan = Plan(0)
    ran = recorder(plan, "a")
    plan.add_callback(lambda: 1 / 0)
    plan.add_callback(lambda: ran.append("after"))
    with pytest.raises(ZeroDivisionError):
        plan.run((0, 0), (0, 3), (3, 3), 1, 1, 1)
    assert ran == ["a"]
    plan.run((0, 0), (0, 1), (1, 1), 1, 1, 1)
    assert ran == ["a", "a"]


def test_a_callback_may_not_run_a_program() -> None:
    plan = Plan(0)
    plan.add_callback(lambda: plan.run((0, 0), (0, 0), (0, 0), 1, 1, 1))
    with pytest.raises(RuntimeError, match="already running on this thread"):
        plan.run((0, 0), (0, 1), (1, 1), 1, 1, 1)
    Plan(0).run((0, 0), (0, 0), (0, 0), 1, 1, 1)


@pytest.mark.usefixtures("ctrl_c_interrupts")
def test_an_interrupt_in_the_body_ends_the_run_before_the_update() -> None:
    plan = Plan(0)
    plan.add_callback(lambda: os.kill(os.getpid(), signal.SIGINT))
    ran = recorder(plan, "u")
    with pytest.raises(KeyboardInterrupt):
        plan.run((0, 0), (0, 1), (1, 2), 1, 1, 1)
    assert ran == []


def test_a_buffer_that_does_not_exist_is_refused() -> None:
    plan = Plan(2)
    with pytest.raises(ValueError, match="buffer 2 of 2"):
        plan.bind(2, 0)


@pytest.mark.parametrize("threads", [1, 2])
def test_an_index_out_of_range_is_an_error_that_names_the_op(threads: int) -> None:
    run = GraphExecutor(lookup_rows(), threads=threads)
    table = torch.randn(5, 8)
    with pytest.raises(ExecutionError, match=r"aten\.embedding\.default: an index is out of range"):
        run(table, torch.tensor([0, 5, 1]))
    assert torch.equal(run(table, torch.tensor([0, 4, 1]))[0], table[[0, 4, 1]])


def test_a_trap_carries_the_number_of_its_step() -> None:
    run = GraphExecutor(lookup_rows(), threads=1)
    run(torch.randn(5, 8), torch.tensor([0, 1, 2]))
    (bound,) = run.plans.values()
    table, ids, rows = torch.randn(5, 8), torch.tensor([-1, 1, 2]), torch.empty(3, 8)
    for buffer, value in enumerate((table, ids, rows), start=FIRST_EXTERNAL):
        bound.engine.bind(buffer, value.data_ptr())
    with pytest.raises(KernelTrap) as trap:
        bound.engine.run((0, 0), (0, 1), (1, 1), 1, 1, 1)
    assert trap.value.step == 0


@pytest.mark.parametrize("threads", [2, 3, 4])
def test_results_do_not_depend_on_the_number_of_threads(threads: int) -> None:
    graph, x, w = linear_relu(333), torch.randn(333, 96), torch.randn(96, 80)
    alone, together = (GraphExecutor(graph, threads=n)(x, w) for n in (1, threads))
    assert all(torch.equal(a, b) for a, b in zip(alone, together, strict=True))
    torch.testing.assert_close(alone[0], (x @ w).relu(), rtol=1e-4, atol=1e-4)


def sleeps_of_threads() -> dict[int, int]:
    """How often each thread of this process has gone to sleep, by its number in the system."""
    sleeps = {}
    for thread in Path("/proc/self/task").iterdir():
        fields = dict(line.split(":", 1) for line in (thread / "status").read_text().splitlines())
        sleeps[int(thread.name)] = int(fields["voluntary_ctxt_switches"])
    return sleeps


def test_only_the_threads_that_a_run_wants_are_woken() -> None:
    graph, x, w = linear_relu(333), torch.randn(333, 96), torch.randn(96, 80)
    GraphExecutor(graph, threads=5)(x, w)
    some = GraphExecutor(graph, threads=3)
    some(x, w)
    time.sleep(0.05)  # all have gone to sleep
    before = sleeps_of_threads()
    for _ in range(20):
        some(x, w)
        time.sleep(0.01)
    after = sleeps_of_threads()
    # Of the test's own process, other threads may wake up meanwhile, but not for each call.
    others = before.keys() - {threading.get_native_id()}
    woken = [thread for thread in others if after[thread] >= before[thread] + 10]
    assert 1 <= len(woken) <= 2, woken


def test_threads_may_run_everywhere_again_once_they_have_been_woken() -> None:
    graph, x, w = linear_relu(333), torch.randn(333, 96), torch.randn(96, 80)
    run = GraphExecutor(graph, threads=3)
    for _ in range(20):
        run(x, w)
        time.sleep(0.005)
    time.sleep(0.05)
    everywhere = os.sched_getaffinity(0)
    assert all(os.sched_getaffinity(thread) == everywhere for thread in sleeps_of_threads())


def test_python_threads_take_turns_and_get_their_own_results() -> None:
    w = torch.randn(96, 80)
    wrong: list[object] = []

    def work(seed: int) -> None:
        run = GraphExecutor(linear_relu(), threads=2)
        x = torch.randn(64, 96, generator=torch.Generator().manual_seed(seed))
        expected = run(x, w)[0]
        for _ in range(50):
            if not torch.equal(run(x, w)[0], expected):
                wrong.append(seed)

    workers = [threading.Thread(target=work, args=(seed,), daemon=True) for seed in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
        assert not worker.is_alive()
    assert wrong == []


class Rows(torch.utils.data.Dataset[torch.Tensor]):
    """Samples that a program computes, in the process that loads them."""

    def __init__(self) -> None:
        self.run = GraphExecutor(linear_relu(), threads=2)
        self.x, self.w = torch.randn(64, 96), torch.randn(96, 80)

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.run(self.x * index, self.w)[1]


def test_a_program_runs_in_a_forked_worker_after_it_ran_in_the_parent() -> None:
    rows = Rows()
    here = torch.stack([rows[index] for index in range(4)])
    loader = torch.utils.data.DataLoader(
        rows, batch_size=2, num_workers=2, multiprocessing_context="fork", timeout=60
    )
    assert torch.equal(torch.cat(list(loader)), here)
    assert torch.equal(rows[3], here[3])


def test_float32_subnormals_flush_inside_the_engine_and_nowhere_else() -> None:
    tiny = torch.tensor([1e-40, -1e-40, 1e-30])
    x, y = Tensor("x", (3,), DType.FLOAT), Tensor("y", (3,), DType.FLOAT)
    graph = Graph("g", (x,), (y,), (op("aten.mul.Scalar", (x,), y, ("self",), other=1e-5),))
    for threads in (1, 2):
        (result,) = GraphExecutor(graph, threads=threads)(tiny)
        assert result.tolist() == [0.0, 0.0, pytest.approx(1e-35)], "an operand below 2^-126 counts as zero"
        (result,) = GraphExecutor(graph, threads=threads)(torch.tensor([1e-36, 1.0, 2.0]))
        assert result[0] == 0.0, "and so does a result"
        assert (tiny * 1.0)[0] != 0.0, "the caller's control word is as before"


def test_subnormal_halfs_stay() -> None:
    x, y = Tensor("x", (2,), DType.HALF), Tensor("y", (2,), DType.HALF)
    graph = Graph("g", (x,), (y,), (op("aten.mul.Scalar", (x,), y, ("self",), other=0.5),))
    smallest = 2.0**-24
    (result,) = GraphExecutor(graph, threads=1)(torch.tensor([2 * smallest, 6 * smallest], dtype=torch.half))
    assert result.tolist() == [smallest, 3 * smallest]


def test_borrowed_threads_compute_the_same_bits() -> None:
    graph, x, w = linear_relu(333), torch.randn(333, 96), torch.randn(96, 80)
    before = torch.get_num_threads()
    results = []
    try:
        for of_torch in (1, 2):  # the executor borrows torch's threads where they are as many as its own
            torch.set_num_threads(of_torch)
            torch.randn(1 << 20).exp_()  # starts them
            results.append(GraphExecutor(graph, threads=2)(x, w))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize("borrow", [False, True])
def test_a_signal_ends_a_run_between_two_steps(borrow: bool) -> None:
    plan = BoundPlan(Planner(linear_relu()).plan(), linear_relu())
    x, w, activation, total = torch.randn(64, 96), torch.randn(96, 80), torch.empty(64, 80), torch.empty(80)
    for buffer, value in enumerate((x, w, activation, total), start=FIRST_EXTERNAL):
        plan.engine.bind(buffer, value.data_ptr())
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    try:
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            plan.run(1, 50_000_000, 2, borrow=borrow)
        timer.join()
    finally:
        signal.signal(signal.SIGINT, before)
    plan.run(1, 1, 2, borrow=borrow)
    torch.testing.assert_close(activation, (x @ w).relu(), rtol=1e-4, atol=1e-4)


NOT_AS_MOST: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "element type": lambda x: x.double(),
    "order": lambda x: x.t(),
    "sign": torch._neg_view,
    "no memory": lambda x: torch._efficientzerotensor(x.shape, dtype=x.dtype),
}


@pytest.mark.parametrize("what", list(NOT_AS_MOST))
def test_what_does_not_lie_as_most_inputs_do_is_seen(what: str) -> None:
    x = torch.randn(3, 3)
    assert are_row_major([x, nn.Parameter(x), x[1:]], [torch.float32] * 3)
    assert not are_row_major([x, NOT_AS_MOST[what](x)], [torch.float32] * 2)
    with pytest.raises(ValueError, match="2 tensors and 1 element types"):
        are_row_major([x, x], [torch.float32])


def test_tensors_are_bound_to_buffers_that_follow_one_another() -> None:
    results = torch.zeros(3, 4, dtype=torch.uint8)
    plan = Plan(3)
    for buffer, value in ((1, 5), (2, 7)):
        plan.add_step(FILL, [buffer], [1], FillInts(1, value), (), 2, 2, 0)
    plan.bind_tensors(0, results[:1])
    plan.bind_tensors(1, results[1:])
    plan.run((0, 0), (0, 2), (2, 2), 1, 1, 1)
    assert results.tolist() == [[0, 0, 0, 0], [0, 5, 5, 0], [0, 7, 7, 0]]
    with pytest.raises(ValueError, match="buffer 3 of 3"):
        plan.bind_tensors(2, results)
