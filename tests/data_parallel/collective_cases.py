"""What each of two processes checks of collectives within compiled graphs."""

import datetime
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from tests.data_parallel.models import assert_same, net, train
from torchipu.errors import ExecutionError
from torchipu.explanation import Explanation, listening

OPS = torch.ops._c10d_functional


def world() -> str:
    return dist.group.WORLD.group_name


def begun() -> int:
    """Return how many collectives this process has begun."""
    return dist.group.WORLD._get_sequence_number_for_group()


def check(function: Callable[..., object], *inputs: torch.Tensor, collectives: int | None = None) -> Explanation:
    """Compare a function, compiled, with eager: results, gradients, inputs it has written, and collectives begun."""
    def run(called: Callable[..., object]) -> tuple[list[torch.Tensor], int]:
        given = [value.clone().requires_grad_(value.requires_grad) for value in inputs]
        leaves = [value * 1 if value.requires_grad else value for value in given]
        count = begun()
        found = called(*leaves)
        results = [found] if isinstance(found, torch.Tensor) else list(found)  # type: ignore[call-overload]
        # What eager returns may be on its way still.
        results = [value.wait() if hasattr(value, "wait") else value for value in results]
        followed = [value.sum() for value in results if value.requires_grad]
        if followed:
            (sum(followed) * (dist.get_rank() + 1)).backward()
        count = begun() - count
        return [*results, *leaves, *(value.grad for value in given if value.grad is not None)], count

    expected, count = run(function)
    with listening(Explanation("")) as explanation:
        found, compiled_count = run(torch.compile(function, backend="ipu", fullgraph=True))
    if explanation.error is not None:
        raise explanation.error
    torch.testing.assert_close(found, expected)
    assert compiled_count == (count if collectives is None else collectives), (compiled_count, count)
    assert explanation.programs
    return explanation


def mine(*shape: int) -> torch.Tensor:
    """Return values that differ from process to process."""
    return torch.arange(float(torch.Size(shape).numel())).reshape(shape) * (dist.get_rank() + 1) + 1


def every_collective_gives_eagers_values() -> None:
    group = dist.group.WORLD

    def every(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        total = functional.all_reduce(x * 2, "sum", group)
        mean = functional.all_reduce(x, "avg", group)
        most = functional.all_reduce(x, "max", group)
        gathered = functional.all_gather_tensor(total + 1, 0, group)
        columns = functional.all_gather_tensor(x, 1, group)
        scattered = functional.reduce_scatter_tensor(gathered, "sum", 0, group)
        handed = functional.broadcast(x - mean, 1, group)
        exchanged = functional.all_to_all_single(x, None, None, group)
        several = functional.all_reduce_coalesced([x, x + 1], "sum", group)
        parts = functional.all_gather_into_tensor_coalesced([x, x.sum(0)], group)
        shares = functional.reduce_scatter_tensor_coalesced([x, x * 3], "sum", [0, 0], group)
        return total, mean, most, gathered, columns, scattered, handed, exchanged, *several, *parts, *shares

    explanation = check(every, mine(4, 3))
    (program,) = explanation.programs
    assert not [op for op in program.graph.ops if op.kind == "generic"]
    assert "all-reduce" in str(explanation)


def calls_that_write_into_their_operand() -> None:
    def torchs(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        total, gathered = x * 2, torch.empty(8)
        dist.all_reduce(total)
        dist.all_gather_into_tensor(gathered, total)
        share = torch.empty(4)
        dist.reduce_scatter_tensor(share, gathered)
        dist.all_reduce(x, op=dist.ReduceOp.MAX)  # an input of the graph
        return total, gathered, share, x + 1

    check(torchs, mine(4))

    def operators(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        total = x * 2
        OPS.wait_tensor(OPS.all_reduce_(total, "sum", world()))
        OPS.wait_tensor(OPS.broadcast_(x, 1, world()))
        return total, x + total

    check(operators, mine(4))


def gradients_flow_through_collectives() -> None:
    group = dist.group.WORLD

    def every(x: torch.Tensor) -> torch.Tensor:
        gathered = functional.all_gather_tensor_autograd(x.sin(), 0, group)
        scattered = functional.reduce_scatter_tensor_autograd(gathered.exp(), "sum", 0, group)
        return functional.all_to_all_single_autograd(scattered, [2, 2], [2, 2], group).cos()

    check(every, mine(4).requires_grad_())


def a_result_that_one_process_ignores() -> None:
    """Both begin the collective, or the one that reads its result would wait for ever."""
    group, rank = dist.group.WORLD, dist.get_rank()

    def reports(x: torch.Tensor) -> torch.Tensor:
        total = functional.all_reduce(x * 2, "sum", group)
        return total + 1 if rank == 0 else x + 1

    check(reports, mine(4))

    def ignores(x: torch.Tensor) -> torch.Tensor:
        total = x * 2
        dist.all_reduce(total)
        return x + 1

    check(ignores, mine(4), collectives=1)


def equal_collectives_stay_apart() -> None:
    """Eager begins two; a process whose graph joined them would fall behind one that did not."""
    group = dist.group.WORLD

    def twice(x: torch.Tensor) -> torch.Tensor:
        return functional.all_reduce(x, "sum", group) + functional.all_reduce(x, "sum", group)

    (program,) = check(twice, mine(4)).programs
    assert sum(op.kind == "process_all_reduce" for op in program.graph.ops) == 2


def results_arrive_while_the_program_computes() -> None:
    """What is on its way survives the reuse of the memory that it came from; waits may be in any order."""
    def long(x: torch.Tensor) -> torch.Tensor:
        sums = [OPS.all_reduce(x * (n + 1), "sum", world()) for n in range(4)]
        parts = [OPS.all_gather_into_tensor(x * (n + 5), 2, world()) for n in range(4)]
        y = x
        for n in range(6):
            y = torch.tanh(y @ y.T @ y) + n  # in the memory of the operands above
        for value in reversed(sums):
            y = y + OPS.wait_tensor(value)
        for value in parts:
            y = y + OPS.wait_tensor(value)[:4]
        return y

    check(long, mine(4, 4) / 16)


def what_is_on_its_way_into_a_graph_is_awaited() -> None:
    def after(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    with functional.allow_inflight_collective_as_graph_input_ctx():
        x = mine(1 << 18)
        dist.all_reduce(x, async_op=True)

        @torch.compile(backend="ipu", fullgraph=True)
        def waits(y: torch.Tensor) -> torch.Tensor:
            OPS.wait_tensor(y)
            return y * 2

        found = waits(x)
    expected = mine(1 << 18)
    dist.all_reduce(expected)
    torch.testing.assert_close(found, expected * 2)
    pending = functional.all_reduce(mine(1 << 18), "sum", dist.group.WORLD)
    torch.testing.assert_close(torch.compile(after, backend="ipu")(pending), expected * 2)


def messages_between_two_processes() -> None:
    peer = 1 - dist.get_rank()

    def exchange(x: torch.Tensor) -> torch.Tensor:
        sent = OPS.isend(x * 2, peer, 0, world())
        received = OPS.wait_tensor(OPS.irecv(torch.empty_like(x), peer, 0, world()))
        OPS.wait_tensor(sent)
        return received + x

    found = torch.compile(exchange, backend="ipu", fullgraph=True)(mine(4))
    torch.testing.assert_close(found, mine(4) + (torch.arange(4.0) * (peer + 1) + 1) * 2)


def collectives_in_control_flow() -> None:
    group = dist.group.WORLD

    def steps(x: torch.Tensor) -> torch.Tensor:
        def body(n: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return n + 1, functional.all_reduce(value, "avg", group) + 1

        return torch.while_loop(lambda n, value: n < 3, body, (torch.tensor(0), x))[1]

    mean = (mine(4) + torch.arange(4.0) * (2 - dist.get_rank()) + 1) / 2
    torch.testing.assert_close(torch.compile(steps, backend="ipu", fullgraph=True)(mine(4)), mean + 3)


def tensor_parallel_layers() -> None:
    mesh = init_device_mesh("cpu", (2,))

    def sharded() -> nn.Module:
        plan = {"linear": ColwiseParallel(), "norm": RowwiseParallel()}
        model = nn.Module.__new__(Pair)
        Pair.__init__(model)
        return parallelize_module(model, mesh, plan)

    torch.manual_seed(5)
    x = torch.randn(4, 12)
    plain, split = Pair(), sharded()
    ours = torch.compile(split, backend="ipu", fullgraph=True)
    torch.testing.assert_close(ours(x), plain(x))
    ours(x).square().sum().backward()
    plain(x).square().sum().backward()
    for found, expected in zip(split.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(found.grad.full_tensor(), expected.grad)


class Pair(nn.Module):
    """Two linear layers, cut along the values between them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.linear, self.norm = nn.Linear(12, 8), nn.Linear(8, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(torch.relu(self.linear(x)))


def distributed_tensors_change_their_placement() -> None:
    mesh = init_device_mesh("cpu", (2,))
    x = torch.arange(16.0).reshape(4, 4)
    held = distribute_tensor(x, mesh, [Shard(0)])

    def turn(value: DTensor) -> tuple[torch.Tensor, torch.Tensor]:
        columns = (value * 2).redistribute(mesh, [Shard(1)])
        return columns.to_local(), columns.redistribute(mesh, [Replicate()]).to_local()

    columns, whole = torch.compile(turn, backend="ipu", fullgraph=True)(held)
    torch.testing.assert_close(whole, x * 2)
    torch.testing.assert_close(columns, (x * 2).chunk(2, 1)[dist.get_rank()])


def subgroups_have_collectives_of_their_own() -> None:
    both, alone = dist.new_group([0, 1]), [dist.new_group([rank]) for rank in range(2)][dist.get_rank()]

    def in_groups(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return functional.all_reduce(x, "sum", both), functional.all_reduce(x * 3, "sum", alone)

    total, same = torch.compile(in_groups, backend="ipu", fullgraph=True)(mine(4))
    torch.testing.assert_close(same, mine(4) * 3)
    torch.testing.assert_close(total, torch.arange(4.0) * 3 + 2)


def hints_and_counts_look_at_finished_results() -> None:
    """Where every result is looked at as it is made, none is on its way."""
    def total(x: torch.Tensor) -> torch.Tensor:
        return functional.all_reduce(x, "sum", dist.group.WORLD) * 2

    for options in ({"statistics": True}, {"floating_point_exceptions": True}):
        found = torch.compile(total, backend="ipu", options=options)(mine(4))
        torch.testing.assert_close(found, (torch.arange(4.0) * 3 + 2) * 2)


def impatient_group() -> dist.ProcessGroup:
    """Return a group that is formed at leisure, and waits for two seconds then."""
    group = dist.new_group([0, 1])
    dist.distributed_c10d._set_pg_timeout(datetime.timedelta(seconds=2), group)
    return group


def processes_that_compile_other_graphs_are_told() -> None:
    """The one that comes second is told before gloo ends it; the first hears that the other has left."""
    rank, group = dist.get_rank(), impatient_group()

    def total(x: torch.Tensor) -> torch.Tensor:
        return functional.all_reduce(x, "sum", group)

    if rank == 1:
        # Rank 0 has begun when this is there.
        dist.distributed_c10d._get_default_store().get(f"torchipu/collective/{group.group_name}/0/0")
    errors: list[str] = []
    try:
        torch.compile(total, backend="ipu")(torch.ones(4 + rank))
    except ExecutionError as error:
        errors = str(error).splitlines()
    different = f"the processes have compiled different collectives for group {group.group_name!r}"
    first = f"rank 0: _c10d_functional.all_reduce.default: {different}" if rank == 0 else different
    assert errors[:1] == [first], errors
    assert "  rank 0: all_reduce(float[4]) reduce_op=sum" in errors, errors
    assert "  rank 1: all_reduce(float[5]) reduce_op=sum" in errors, errors
    assert errors[-1].startswith("  do      give all of them the same model and inputs of the same shapes"), errors


def a_process_that_stays_away_is_an_error_in_time() -> None:
    group = impatient_group()
    if dist.get_rank() == 1:
        return
    with pytest.raises(ExecutionError) as raised:
        torch.compile(lambda x: functional.all_reduce(x, "sum", group), backend="ipu")(torch.ones(4))
    raised.match("^rank 0: _c10d_functional.all_reduce.default: .*(Timed out|closed)")
    raised.match("see whether another process has ended, and why")


def training_after_all_this_still_agrees() -> None:
    assert_same(
        train(nn.parallel.DistributedDataParallel(torch.compile(net(), backend="ipu"))),
        train(nn.parallel.DistributedDataParallel(net())),
    )


CASES: tuple[Callable[[], None], ...] = (
    every_collective_gives_eagers_values, calls_that_write_into_their_operand, gradients_flow_through_collectives,
    a_result_that_one_process_ignores, equal_collectives_stay_apart, results_arrive_while_the_program_computes,
    what_is_on_its_way_into_a_graph_is_awaited, messages_between_two_processes, collectives_in_control_flow,
    tensor_parallel_layers, distributed_tensors_change_their_placement, subgroups_have_collectives_of_their_own,
    hints_and_counts_look_at_finished_results, processes_that_compile_other_graphs_are_told,
    a_process_that_stays_away_is_an_error_in_time,
    training_after_all_this_still_agrees,
)
