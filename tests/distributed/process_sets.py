"""Programs of horovod in three processes, of which some exchange values; run by ``tests.distributed.forked``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import horovod.torch as hvd
import poptorch
import torch
import torch._dynamo  # once, for all processes
import torch.distributed as dist

from tests.distributed.forked import Scenario
from tests.distributed.instances import AT_A_PORT, error_of, under_torchrun

RANKS = (0, 1, 2)
OPS = {"mean": hvd.Average, "sum": hvd.Sum}


def own_rows(rank: int) -> torch.Tensor:
    """Return five rows, which three processes do not share out evenly."""
    return torch.arange(10.0, dtype=torch.float64).reshape(5, 2) + 100 * rank


def exchange_in_sets(rank: int) -> Any:
    under_torchrun(rank, 3)
    ends = hvd.ProcessSet([2, 0])
    early = [ends.size(), ends.rank(), error_of(lambda: hvd.allreduce(torch.ones(1), process_set=ends))]
    hvd.init(process_sets=[ends])
    middle = hvd.add_process_set([1])
    found = {
        "early": early, "twice": error_of(lambda: hvd.add_process_set([0, 2])),
        "whole": error_of(lambda: hvd.add_process_set([0, 1, 2])), "far": error_of(lambda: hvd.add_process_set([3])),
        "all": [hvd.global_process_set.size(), hvd.global_process_set.rank(), hvd.global_process_set.included()],
        "ends": [ends.size(), ends.rank(), ends.included()],
    }
    own, weight = own_rows(rank), torch.nn.Parameter(torch.zeros(1))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), process_set=ends)
    (weight * (rank + 1)).sum().backward()
    optimizer.step()
    found["weight"] = weight.item()
    if ends.included():
        found |= {
            "mean": hvd.allreduce(own, process_set=ends).tolist(),
            "rows": hvd.allgather(own[: rank + 1, 0], process_set=ends).tolist(),
            "dealt": hvd.alltoall(own[:4, 0], process_set=ends).tolist(),
            "split": hvd.alltoall(own[:3, 0], [1, 2], process_set=ends)[1].tolist(),
            "share": hvd.reducescatter(own[:, 0], op=hvd.Sum, process_set=ends).tolist(),
            "root": hvd.broadcast(own[0], 2, process_set=ends).tolist(),
            "turned": hvd.broadcast_(own.clone().t(), 2, process_set=ends).tolist(),
            "object": hvd.broadcast_object([rank], 2, process_set=ends),
            "outside": error_of(lambda: hvd.broadcast(own, 1, process_set=ends)),
            "later": hvd.synchronize(hvd.allreduce_async(own[0], None, "own", hvd.Sum, process_set=ends)).tolist(),
            "not_in": error_of(lambda: hvd.allreduce(own, process_set=middle)),
            "gradients": gradients_of(lambda x: hvd.allgather(x, process_set=ends), rank),
        }
        hvd.barrier(process_set=ends)
    else:
        found["alone"] = hvd.allreduce(own, process_set=middle).tolist()
    removed = [hvd.remove_process_set(ends), hvd.remove_process_set(ends), ends.size()]
    again = hvd.add_process_set(ends)
    hvd.shutdown()
    return found | {"removed": removed, "again": again is ends, "after": ends.size()}


def gradients_of(exchange: Callable[[torch.Tensor], torch.Tensor], rank: int) -> list[Any]:
    """Return the result of an exchange and the gradient of this process's rows, which each process weighs alike not."""
    own = own_rows(rank).requires_grad_()
    result = exchange(own)
    weights = torch.linspace(1, 2, result.numel(), dtype=torch.float64).reshape(result.shape)
    (result * weights * 10**rank).sum().backward()
    assert own.grad is not None
    return [result.tolist(), own.grad.tolist()]


def reduce_in_two_ways(rank: int) -> Any:
    """Return what `allreduce` gives, and what its two halves do, for each op, with gradients."""
    under_torchrun(rank, 3)
    hvd.init()
    factors = {"prescale_factor": 0.5, "postscale_factor": 3.0}
    return {
        name: [
            gradients_of(lambda x, op=op: hvd.allreduce(x, op=op, **factors), rank),
            gradients_of(lambda x, op=op: hvd.allgather(hvd.reducescatter(x, op=op, **factors)), rank),
            gradients_of(
                lambda x, op=op: hvd.allgather(hvd.grouped_reducescatter([x[:1], x], op=op, **factors)[1]), rank
            ),
        ]
        for name, op in OPS.items()
    }


class Quarters:
    """A compressor: values travel as whole quarters."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.dtype]:
        return (tensor * 4).round().to(torch.int64), tensor.dtype

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: torch.dtype) -> torch.Tensor:
        return tensor.to(ctx) / 4


def compress(rank: int) -> Any:
    under_torchrun(rank, 3)
    hvd.init()
    value, weight = torch.tensor([0.3, 1.6]), torch.nn.Parameter(torch.zeros(2))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), compression=Quarters, op=hvd.Sum)
    (weight * value).sum().backward()
    optimizer.step()
    return {
        "sum": hvd.allreduce(value, op=hvd.Sum, compression=Quarters).tolist(), "weight": weight.tolist(),
        "share": hvd.reducescatter(value.repeat(2), op=hvd.Sum, compression=Quarters).tolist(),
        "ints": hvd.allreduce(torch.tensor([3]), op=hvd.Sum, compression=hvd.Compression.fp16).tolist(),
    }


def train_sparsely(rank: int) -> Any:
    """Return the weights of an embedding after a step of an optimiser that takes sparse gradients alone."""
    under_torchrun(rank, 3)
    hvd.init()
    found = {}
    for as_dense in (False, True):
        table = torch.nn.Embedding(5, 2, sparse=True)
        torch.nn.init.ones_(table.weight)
        plain = torch.optim.SparseAdam(table.parameters(), lr=0.1)
        optimizer = hvd.DistributedOptimizer(plain, table.named_parameters(), sparse_as_dense=as_dense)
        if rank:  # the first process has no gradient
            (table(torch.tensor([rank, 3, 3])) * rank).sum().backward()
        optimizer.synchronize()
        gradient = table.weight.grad
        with optimizer.skip_synchronize():
            optimizer.step()
        found[str(as_dense)] = [gradient.is_sparse, gradient.to_dense().tolist(), table.weight.tolist()]
    return found


EXCHANGES = {
    "mean": hvd.allreduce, "sum": lambda x: hvd.grouped_allreduce([x, x + 1], op=hvd.Sum)[1], "rows": hvd.allgather,
    "share": hvd.reducescatter, "dealt": lambda x: hvd.alltoall(x, [2, 2, 1])[0], "root": lambda x: hvd.broadcast(x, 1),
    "object": lambda x: x * len(hvd.allgather_object(None)),
}


def exchange_in_graphs(rank: int) -> Any:
    """Return whether what is compiled gives what eager functions do, and what a captured model is told."""
    under_torchrun(rank, 3)
    hvd.init()
    found = {}
    for name, exchange in EXCHANGES.items():
        def between(x: torch.Tensor, exchange: Callable[[torch.Tensor], torch.Tensor] = exchange) -> torch.Tensor:
            return exchange(x * 2).square()

        found[name] = [gradients_of(between, rank), gradients_of(torch.compile(between, backend="ipu"), rank)]
    options = poptorch.Options().showCompilationProgressBar(False).enableExecutableCaching("cache")
    captured = poptorch.inferenceModel(lambda x: hvd.allgather(x), options)
    return found | {"captured": error_of(lambda: captured(torch.ones(2)))}


def lose_a_process(rank: int) -> Any:
    under_torchrun(rank, 3)
    hvd.init()
    hvd.barrier()
    return "gone" if rank == 1 else error_of(lambda: hvd.allreduce(torch.ones(3)))


DIFFERENT: dict[str, Callable[[int], object]] = {
    "shape": lambda rank: hvd.allreduce(torch.ones(2 + rank)),
    "same_total": lambda rank: hvd.allreduce(torch.ones((2, 3) if rank else (3, 2))),
    "dtype": lambda rank: hvd.allreduce(torch.ones(3, dtype=torch.float64 if rank == 2 else torch.float32)),
    "op": lambda rank: hvd.allreduce(torch.ones(3), op=hvd.Max if rank else hvd.Sum),
    "factor": lambda rank: hvd.allreduce(torch.ones(3), prescale_factor=float(rank)),
    "rows": lambda rank: hvd.allgather(torch.ones(2, 3 + rank)),
    "number": lambda rank: hvd.grouped_allreduce([torch.ones(1)] * (1 + rank)),
    "many": lambda rank: hvd.grouped_allreduce(
        [torch.ones(3 if place == 7 and rank == 1 else 2) for place in range(9)]
    ),
    "dealt": lambda rank: hvd.alltoall(torch.ones(3, 1 + rank)),
    "sent": lambda rank: hvd.broadcast(torch.ones(3 + rank), 0),
    "root": lambda rank: hvd.broadcast(torch.ones(3), rank),
    "object": lambda rank: hvd.broadcast_object("all", rank),
    "other": lambda rank: hvd.broadcast(torch.ones(3), 0) if rank else hvd.reducescatter(torch.ones(3)),
    "gathered": lambda rank: hvd.allgather_object(3) if rank else hvd.allgather(torch.ones(3)),
    "barrier": lambda rank: hvd.barrier() if rank else hvd.allreduce(torch.ones(3)),
    "set": lambda rank: hvd.add_process_set([0, 1 + rank % 2]),
    "joined": lambda rank: hvd.join() if rank == 1 else hvd.broadcast(torch.ones(3), 0),
    "joined_max": lambda rank: hvd.join() if rank == 1 else hvd.allreduce(torch.ones(3), op=hvd.Max),
}
"""Exchanges in which processes do not do the same."""


def ask_for_different_exchanges(rank: int) -> Any:
    """Return what each process is told, and a sum after it, which shows that nothing of it is left."""
    under_torchrun(rank, 3)
    hvd.init()
    found = {}
    for name, exchange in DIFFERENT.items():
        found[name] = [error_of(lambda exchange=exchange: exchange(rank)), hvd.allreduce(torch.ones(2)).tolist()]
    return found


def come_to_an_end(rank: int) -> Any:
    """Return what processes with one, two and three batches compute, and which of them they say came last."""
    under_torchrun(rank, 3)
    hvd.init()
    found: dict[str, Any] = {"sums": [], "means": [], "rows": [], "ints": []}
    for step in range(rank + 1):
        own = torch.tensor([1.0, 10.0 ** rank])
        found["sums"].append(hvd.allreduce(own, op=hvd.Sum, postscale_factor=2.0).tolist())
        found["means"].append(hvd.allreduce(own).tolist())
        found["rows"].append(hvd.allgather(torch.full((2, 1), rank + 10 * step)).flatten().tolist())
        group = hvd.grouped_allreduce([own, torch.tensor([rank])], op=hvd.Sum, prescale_factor=0.5)
        found["ints"].append([one.tolist() for one in group])
    found["last"] = hvd.join()
    weight, table = torch.nn.Parameter(torch.zeros(1)), torch.nn.Embedding(4, 1, sparse=True)
    torch.nn.init.zeros_(table.weight)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight, table.weight], lr=3.0))
    for step in range(3 - rank):
        optimizer.zero_grad()
        (weight.sum() + table(torch.tensor([step])).sum()).backward()
        optimizer.step()
    found["again"] = hvd.join()
    return found | {"weight": weight.item(), "table": table.weight.flatten().tolist()}


COMBINED = {
    "Sum": lambda rows: rows.sum(0, dtype=rows.dtype), "Product": lambda rows: rows.prod(0, dtype=rows.dtype),
    "Min": lambda rows: rows.amin(0), "Max": lambda rows: rows.amax(0),
}
"""What ops make of the rows of all processes; bools have two of them."""
FEW_AND_MANY = (0, 1, 255, 256, 257, 1024, 1025)
"""Elements: those of four bytes, and of one, go round with what processes ask for up to one of these."""


def values_of(rank: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    """Return small numbers of a process, of which sums and products are exact."""
    values = torch.arange(count) * (rank + 1) % 5 - 1
    return values % 2 == 0 if dtype == torch.bool else (values.abs() if dtype == torch.uint8 else values).to(dtype)


def exchange_few_and_many(rank: int) -> Any:
    """Return what differs from what processes give, and how many exchanges of torch.distributed each takes."""
    under_torchrun(rank, 3)
    hvd.init()
    wrong, exchanges = [], {}
    counted, gather, reduce, send = [0], dist.all_gather, dist.all_reduce, dist.broadcast

    def counting(exchange: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **kwargs: Any) -> Any:
            counted[0] += 1
            return exchange(*args, **kwargs)

        return called

    dist.all_gather, dist.all_reduce, dist.broadcast = counting(gather), counting(reduce), counting(send)
    try:
        for dtype in (torch.float32, torch.bool, torch.int64, torch.uint8, torch.float16, torch.bfloat16):
            for count in FEW_AND_MANY:
                rows = torch.stack([values_of(one, count, dtype) for one in RANKS])
                for name in ("Min", "Max") if dtype == torch.bool else COMBINED:
                    found = hvd.allreduce(rows[rank], op=getattr(hvd, name))
                    if not torch.equal(found, COMBINED[name](rows)):
                        wrong.append(f"{name} of {count} {dtype}")
                counted[0] = 0
                sent = hvd.broadcast(rows[rank], 1)
                exchanges[f"{count} {dtype}"] = counted[0]
                if not torch.equal(sent, rows[1]):
                    wrong.append(f"broadcast of {count} {dtype}")
        lying = torch.arange(6.0).reshape(2, 3).t() + rank  # not one row behind another
        wrong += [] if torch.equal(hvd.broadcast(lying, 2), lying - rank + 2) else ["broadcast of a transposed one"]
        counted[0] = 0
        hvd.grouped_allreduce([torch.ones(2), torch.ones((), dtype=torch.int64)], op=hvd.Sum)
        exchanges["of two types"] = counted[0]
        counted[0] = 0
        hvd.grouped_allreduce([torch.ones(2), torch.ones(())], op=hvd.Sum)
        exchanges["of one type"] = counted[0]
    finally:
        dist.all_gather, dist.all_reduce, dist.broadcast = gather, reduce, send
    return {"wrong": wrong, "exchanges": exchanges}


SCENARIOS = {
    "few": Scenario(exchange_few_and_many, RANKS, AT_A_PORT),
    "sets": Scenario(exchange_in_sets, RANKS, AT_A_PORT),
    "two_ways": Scenario(reduce_in_two_ways, RANKS, AT_A_PORT),
    "compressed": Scenario(compress, RANKS, AT_A_PORT),
    "sparse": Scenario(train_sparsely, RANKS, AT_A_PORT),
    "graphs": Scenario(exchange_in_graphs, RANKS, AT_A_PORT),
    "different": Scenario(ask_for_different_exchanges, RANKS, AT_A_PORT),
    "ends": Scenario(come_to_an_end, RANKS, AT_A_PORT),
    "lost": Scenario(lose_a_process, RANKS, AT_A_PORT),
}
