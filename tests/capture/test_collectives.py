"""Collectives over processes in captured graphs: what the IR holds of them, and what the device does for them."""

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore

from torchipu.backend import ipu_backend
from torchipu.capture import substitutes
from torchipu.compiler import Compiled, compile_graph
from torchipu.device.cost.exchange import all_reduce_cycles, collective_cycles, link_cycles
from torchipu.errors import PlacementError
from torchipu.host.collectives import only_awaited, with_late_waits
from torchipu.ir.graph import Graph, Op, Tensor
from torchipu.ir.program import AllReduce, Copy, leaves_of
from torchipu.ir.text import format_executable
from torchipu.ir.types import DType
from torchipu.optable.collective import PATTERNS, WAIT
from torchipu.options import Options
from torchipu.report.recorder import recording
from torchipu.target import lookup_target

PROCESSES = 16
OPS = torch.ops._c10d_functional


@pytest.fixture
def group() -> Iterator[dist.ProcessGroup]:
    """A group of processes of which only this one exists."""
    torch._dynamo.reset()
    dist.init_process_group("fake", store=FakeStore(), rank=3, world_size=PROCESSES)
    yield dist.group.WORLD
    dist.destroy_process_group()


def compiled(function, *inputs: torch.Tensor, **options: object) -> Compiled:
    """Compile a function that is one graph, and return what the compiler made of it."""
    with recording() as programs:
        torch.compile(function, backend=ipu_backend, fullgraph=True, options=options)(*inputs)
    (program,) = programs
    return compile_graph(program.graph, Options(), lookup_target("mk2"))


def collectives_of(made: Compiled) -> list[AllReduce]:
    return [
        step for function in made.executable.functions.values() for step in leaves_of(function)
        if isinstance(step, AllReduce)
    ]


# ---------------------------------------------------------------------- what the device does
def test_a_sum_over_processes_takes_the_links_all_reduce(group):
    made = compiled(lambda x: functional.all_reduce(x * 2, "sum", group) + 1, torch.ones(1000))
    (found,) = collectives_of(made)
    assert (found.kind, found.mean, found.replicas) == ("all_reduce", False, PROCESSES)
    spent = sum(cost.cycles_by_category["all-reduce"] for cost in made.cost.functions.values())
    assert spent == all_reduce_cycles(made.target, 4000, PROCESSES)
    assert "all_reduce sum %" in format_executable(made.executable)


def test_more_processes_than_a_system_has_ipus_are_refused(group):
    with recording() as programs:
        torch.compile(lambda x: functional.all_reduce(x * 2, "sum", group), backend=ipu_backend)(torch.ones(10))
    graph = programs[0].graph
    compile_graph(graph, Options(), lookup_target("pod16"))
    with pytest.raises(PlacementError, match="16 processes need 16 IPUs at least, but bow-2000 has 4"):
        compile_graph(graph, Options(), lookup_target("bow-2000"))


def test_a_mean_over_processes_says_so(group):
    (found,) = collectives_of(compiled(lambda x: functional.all_reduce(x * 2, "avg", group), torch.ones(10)))
    assert found.mean


def test_shares_are_gathered_whole_and_sums_scattered_from_the_whole(group):
    def both(x):
        whole = functional.all_gather_tensor(x * 2, 0, group)
        return functional.reduce_scatter_tensor(whole * 3, "sum", 0, group)

    made = compiled(both, torch.ones(6, 5))
    gathered, scattered = collectives_of(made)
    assert (gathered.kind, scattered.kind) == ("all_gather", "reduce_scatter")
    for step in (gathered, scattered):
        assert sum(variable.device_bytes for variable in step.variables) == 6 * 5 * 4 * PROCESSES


def test_the_operand_of_a_scattered_sum_is_still_there_afterwards(group):
    def reads_again(x):
        y = x * 2
        return functional.reduce_scatter_tensor(y, "sum", 0, group), y + 1

    made = compiled(reads_again, torch.ones(PROCESSES, 4))
    (scattered,) = collectives_of(made)
    copies = [step for step in leaves_of(made.executable.functions["0F"]) if isinstance(step, Copy)]
    assert any(copy.dst is scattered.variables[0] for copy in copies)


def test_a_broadcast_an_exchange_and_a_message_have_cycles_of_their_own():
    target = lookup_target("mk2")
    whole = all_reduce_cycles(target, 4000, 4)
    for kind in ("reduce_scatter", "all_gather", "all_to_all"):
        assert collective_cycles(target, kind, 4000, 4) == -(-whole // 2)
    assert collective_cycles(target, "broadcast", 4000, 4) == link_cycles(target, 4000) + 3 * target.ipu_sync_cycles
    assert collective_cycles(target, "point_to_point", 4000, 2) == link_cycles(target, 4000) + target.ipu_sync_cycles
    for kind in ("all_reduce", "all_gather", "broadcast"):
        assert collective_cycles(target, kind, 4000, 1) == 0


# ---------------------------------------------------------------------- what the IR holds
def test_collectives_stay_in_their_order_and_none_is_dropped_or_joined(group):
    def many(x):
        y = x * 2
        dist.all_reduce(y)  # nobody reads it
        first, second = functional.all_reduce(x, "sum", group), functional.all_reduce(x, "sum", group)
        return functional.broadcast(x, 1, group) + first + second

    made = compiled(many, torch.ones(4))
    assert [op.kind for op in made.graph.ops if op.target in PATTERNS] == ["process_all_reduce"] * 3 + [
        "process_broadcast"
    ]


def test_strict_ops_takes_every_functional_collective(group):
    def every(x):
        total = functional.all_reduce(x, "sum", group)
        whole = functional.all_gather_tensor(total, 0, group)
        share = functional.reduce_scatter_tensor(whole, "sum", 0, group)
        return functional.all_to_all_single(functional.broadcast(share, 0, group), None, None, group)

    compiled(every, torch.ones(PROCESSES, 2), strict_ops=True)


def test_an_exchange_whose_sizes_only_the_values_tell_is_refused(group):
    def uneven(x, sizes):
        counts = sizes.tolist()
        return functional.all_to_all_single(x, counts, counts, group)

    sizes = torch.ones(PROCESSES, dtype=torch.int64)
    expected = pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="not known before the program runs")
    with torch._dynamo.config.patch(capture_scalar_outputs=True), expected:
        compiled(uneven, torch.ones(PROCESSES), sizes)


# ---------------------------------------------------------------------- when the host waits
def chain(*names: str) -> tuple[Graph, list[str]]:
    """Return a graph that reduces and waits at once, twice, and computes something else before it reads the sums."""
    x, a, b, wa, wb, c, d = (Tensor(name, (4,), DType.FLOAT) for name in ("x", "a", "b", "wa", "wb", "c", "d"))
    reduce = "_c10d_functional.all_reduce.default"
    ops = (
        Op("process_all_reduce", (x,), (a,), target=reduce, operands=("input",)),
        Op("process_wait", (a,), (wa,), target=WAIT, operands=("tensor",)),
        Op("process_all_reduce", (x,), (b,), target=reduce, operands=("input",)),
        Op("process_wait", (b,), (wb,), target=WAIT, operands=("tensor",)),
        Op("sin", (x,), (c,), target="aten.sin.default", operands=("self",)),
        Op("add", (c, wb), (d,), target="aten.add.Tensor", operands=("self", "other")),
    )
    return Graph("g", (x,), (d, wa), ops), [op.outputs[0].name for op in ops]


def test_a_wait_stands_right_before_its_first_reader_or_at_the_end():
    graph, _ = chain()
    late = with_late_waits(graph)
    assert [op.outputs[0].name for op in late.ops] == ["a", "b", "c", "wb", "d", "wa"]


def test_a_graph_without_waits_is_left_alone():
    graph, _ = chain()
    plain = Graph("g", graph.inputs, (), graph.ops[:1])
    assert with_late_waits(plain) is plain


def test_a_result_that_something_else_reads_too_is_not_on_its_way():
    graph, _ = chain()
    a, b = graph.ops[0].outputs[0], graph.ops[2].outputs[0]
    readers: dict[Tensor, list[Op]] = {}
    for op in graph.ops:
        for operand in op.inputs:
            readers.setdefault(operand, []).append(op)
    assert only_awaited(readers, graph.outputs) == {a, b}
    assert only_awaited(readers, (a,)) == {b}
    readers[b].append(graph.ops[4])
    assert only_awaited(readers, graph.outputs) == {a}


def test_a_group_that_does_not_exist_is_named():
    assert not dist.is_initialized()
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed) as raised:
        torch.compile(lambda x: OPS.all_reduce(x, "sum", "nobody"), backend=ipu_backend)(torch.ones(3))
    raised.match("this process has no process group 'nobody'")
    raised.match("call torch.distributed.init_process_group, or new_group, before the model is compiled")


def test_the_substitutes_are_registered_again_after_a_group_was_formed(group):
    """Forming a group lets Dynamo forget its rules; what is imported after it registers what was registered before."""
    substitutes.register()
    loss = torch.compile(nn.GaussianNLLLoss(), backend=ipu_backend, fullgraph=True)
    mean, label, variance = torch.randn(4), torch.randn(4), torch.rand(4) + 0.1
    torch.testing.assert_close(loss(mean, label, variance), nn.GaussianNLLLoss()(mean, label, variance))
