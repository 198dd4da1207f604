"""Programs of popdist, horovod and poptorch in several processes; run by ``tests.distributed.forked``."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from typing import Any

import horovod.torch as hvd
import popdist
import popdist.poptorch
import poptorch
import torch
import torch.distributed as dist

import several_instances
from tests.distributed.forked import Scenario
from tests.poptorch.data_sets import Numbers
from tests.poptorch.models import Classifier, batch
from torchipu.poptorch.executor import session
from torchipu.poptorch.stored import cache as executable_cache

torch.set_num_threads(1)  # what a process does in several threads cannot go on in a fork of it
AT_A_PORT = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "{port}"}


def warm_up() -> None:
    """Compile a model, which imports much that all scenarios then have."""
    poptorch.trainingModel(Classifier()).compile(*batch(4))


def under_torchrun(rank: int, size: int = 2) -> None:
    os.environ.update({"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank)})


def ask_popdist(rank: int) -> Any:
    under_torchrun(rank)
    before = error_of(lambda: popdist.registerCommunicator({0}, 1))
    alone = popdist.isBackendInitialized()
    popdist.init()
    popdist.init()  # a second time does nothing
    options = popdist.poptorch.Options()
    plain = poptorch.Options()
    both, first = popdist.registerCommunicator({0, 1}, 1), popdist.registerCommunicator({0}, 2)
    value = torch.tensor([rank + 1.0])
    dist.all_reduce(value, group=both)
    found = {
        "before": before, "states": [alone, popdist.isBackendInitialized()], "launched": popdist.isPopdistEnvSet(),
        "instances": [popdist.getInstanceIndex(), popdist.getNumInstances(), popdist.getLocalInstanceIndex()],
        "replicas": [popdist.getNumTotalReplicas(), popdist.getNumLocalReplicas(), popdist.getReplicaIndexOffset()],
        "options": [options.Distributed.processId, options.Distributed.numProcesses, options.replication_factor],
        "plain": [plain.Distributed.processId, plain.Distributed.numProcesses],
        "sum": value.item(), "first": first is not None,
        "second": error_of(lambda: popdist.registerCommunicator({0}, 2)),
        "executed": popdist.execute_on_instances({1}, lambda: 7),
        "unknown": error_of(lambda: popdist.execute_on_instances({2}, print)),
    }
    os.environ["POPDIST_NUM_LOCAL_REPLICAS"] = "3"
    found["told"] = [popdist.getNumTotalReplicas(), popdist.getReplicaIndexOffset(), popdist.getNumInstances()]
    popdist.finalizeBackend()
    found["after"] = [popdist.isBackendInitialized(), dist.is_initialized()]
    popdist.init()
    dist.all_reduce(value)  # the group is there again
    found["again"] = value.item()
    return found


def error_of(call: Any) -> str:
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error} {' '.join(getattr(error, '__notes__', []))}"
    return "none"


def raise_in_one(rank: int) -> Any:
    under_torchrun(rank)
    return error_of(lambda: popdist.execute_on_instances({0}, lambda: 1 / 0))


def use_horovod(rank: int) -> Any:
    under_torchrun(rank)
    early = error_of(hvd.rank)
    hvd.init()
    tensor = torch.tensor([1.0, 2.0]) * (rank + 1)
    model = torch.nn.Linear(2, 1)
    torch.manual_seed(rank)
    torch.nn.init.normal_(model.weight)
    hvd.broadcast_parameters(model.state_dict(), root_rank=1)
    weight = model.weight.detach().clone()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9))
    model(torch.tensor([[1.0, float(rank)]])).sum().backward()
    optimizer.step()
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    handle = hvd.allreduce_async(tensor, op=hvd.Sum)
    in_place = tensor.clone()
    hvd.allreduce_(in_place, average=False)
    return {
        "early": early, "place": [hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), hvd.cross_rank()],
        "mean": hvd.allreduce(tensor).tolist(), "sum": hvd.allreduce(tensor, op=hvd.Sum).tolist(),
        "least": hvd.allreduce(tensor, op=hvd.Min).tolist(), "most": hvd.allreduce(tensor, op=hvd.Max).tolist(),
        "product": hvd.allreduce(tensor, op=hvd.Product).tolist(), "in_place": in_place.tolist(),
        "half": hvd.allreduce(tensor, compression=hvd.Compression.fp16).tolist(),
        "grouped": [t.tolist() for t in hvd.grouped_allreduce([tensor, torch.tensor([rank])], op=hvd.Sum)],
        "gathered": hvd.allgather(torch.full((rank + 1, 2), float(rank))).tolist(),
        "gathered_group": [
            rows.tolist() for rows in hvd.synchronize(
                hvd.grouped_allgather_async([torch.full((rank + 1,), rank), tensor[:rank]]),
            )
        ],
        "objects": hvd.allgather_object({"rank": rank}), "object": hvd.broadcast_object([rank], root_rank=1),
        "broadcast": hvd.broadcast(tensor, root_rank=1).tolist(), "weights": weight.tolist(),
        "moved": (model.weight.detach() - weight).tolist(),
        "handle": [hvd.poll(handle), hvd.synchronize(handle).tolist()],
        "taken": error_of(lambda: hvd.synchronize(handle)), "joined": hvd.join() in (0, 1),
        "momentum": next(iter(optimizer.state.values()))["momentum_buffer"].tolist(), "barrier": hvd.barrier(),
        "no_root": error_of(lambda: hvd.broadcast(tensor, root_rank=2)),
    }


def exchange_rows_by_horovod(rank: int) -> Any:
    under_torchrun(rank)
    hvd.init()
    rows = torch.arange(4.0).reshape(4, 1) + 10 * rank
    own = rows[: 3 - rank]  # three rows and two
    received, counts = hvd.alltoall(own, splits=torch.tensor([1, 2] if rank == 0 else [2, 0]))
    return {
        "even": hvd.alltoall(rows).tolist(), "received": received.tolist(), "counts": counts.tolist(),
        "later": hvd.synchronize(hvd.alltoall_async(rows)).tolist(),
        "shares": hvd.reducescatter(rows).tolist(), "sums": hvd.reducescatter(rows[:3], op=hvd.Sum).tolist(),
        "no_rows": hvd.reducescatter(torch.ones(1, 2), op=hvd.Sum, prescale_factor=3.0).tolist(),
        "shares_later": [one.tolist() for one in hvd.synchronize(
            hvd.grouped_reducescatter_async([rows[:2], rows[2:].long()], op=hvd.Sum),
        )],
        "scalar": error_of(lambda: hvd.reducescatter(torch.tensor(1.0))),
        "least": error_of(lambda: hvd.reducescatter(rows, op=hvd.Min)),
        "uneven": error_of(lambda: hvd.alltoall(rows[:3])), "splits": error_of(lambda: hvd.alltoall(rows, [1, 2])),
    }


def rows_of(rank: int) -> torch.Tensor:
    """Return rows whose mean is large, more of them in the second process."""
    generator = torch.Generator().manual_seed(rank)
    return 1000 + torch.randn(3 + 2 * rank, 4, 2, generator=generator, dtype=torch.float64)


def normalise_by_horovod(rank: int) -> Any:
    under_torchrun(rank)
    hvd.init()
    layer = hvd.SyncBatchNorm(4, momentum=0.2).double()
    values = rows_of(rank).requires_grad_()
    result = layer(values)
    (result.square() * torch.arange(1.0, 5).reshape(4, 1)).sin().sum().backward()
    layer.eval()
    found = {
        "result": result, "values": values.grad, "weight": layer.weight.grad, "bias": layer.bias.grad,
        "mean": layer.running_mean, "variance": layer.running_var, "count": layer.num_batches_tracked,
        "evaluated": layer(values),
    }
    alone = error_of(lambda: hvd.SyncBatchNorm(2)(torch.ones(1 - rank, 2)))  # one value for each feature
    cumulative = hvd.SyncBatchNorm(2, momentum=None, affine=False).double()
    for step in range(2):
        cumulative(rows_of(rank)[:, :2, 0] * (1 + step))
    found |= {"mean_of_all": cumulative.running_mean, "variance_of_all": cumulative.running_var}
    return {"alone": alone} | {name: tensor.tolist() for name, tensor in found.items()}


def differentiate_horovod(rank: int) -> Any:
    """Return gradients of what each exchange gives, weighted by other numbers in each process."""
    under_torchrun(rank)
    hvd.init()
    exchanges = {
        "mean": lambda x: hvd.allreduce(x), "sum": lambda x: hvd.allreduce(x, op=hvd.Sum),
        "grouped": lambda x: hvd.grouped_allreduce([x, 2 * x])[1], "broadcast": lambda x: hvd.broadcast(x, 1),
        "gathered": lambda x: hvd.allgather(x[: rank + 1]),
        "gathered_group": lambda x: torch.cat(hvd.grouped_allgather([x[:rank], x])), "rows": lambda x: hvd.alltoall(x),
        "dealt": lambda x: hvd.alltoall(x, splits=[2, 0] if rank else [1, 1])[0],
        "greatest": lambda x: hvd.allreduce(x, op=hvd.Max),
        "share": lambda x: hvd.reducescatter(x, prescale_factor=4.0),
        "share_of_three": lambda x: hvd.grouped_reducescatter([x, torch.cat([x, x[:1]])], op=hvd.Sum)[1],
    }
    found = {}
    for name, exchange in exchanges.items():
        values = torch.tensor([1.0, 2.0], requires_grad=True)
        result = exchange(values)
        (result * torch.arange(1.0, len(result) + 1) * 10**rank).sum().backward()
        found[name] = values.grad.tolist()
    bag = torch.nn.EmbeddingBag(3, 1, mode="sum", sparse=True)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(bag.parameters(), lr=1.0), sparse_as_dense=True, num_groups=2)
    before = bag.weight.detach().clone()
    bag(torch.tensor([[rank, 2]])).sum().backward()
    optimizer.step()
    return found | {
        "sparse": (before - bag.weight.detach()).reshape(-1).tolist(),
        "sets": error_of(lambda: hvd.init(comm=[0])), "again": hvd.init(comm=[0, 1], process_sets=[]),
    }


def read_share(rank: int, size: int) -> Any:
    """Return what this process reads in three epochs: in order, shuffled, and with nothing dropped."""
    found = {}
    for name, more in (("blocks", {}), ("shuffled", {"shuffle": True}), ("whole", {"drop_last": False})):
        options = poptorch.Options().deviceIterations(2).randomSeed(5)
        options.Distributed.configureProcessId(rank, size)
        loader = poptorch.DataLoader(options, Numbers(30), batch_size=1, **more)
        found[name] = [[n for _, y in loader for n in y.tolist()] for _ in range(3)]
    return found


def compile_with_cache(rank: int) -> Any:
    """Train in two processes with one cache; return how many models this process has captured."""
    captured = []
    capture = session.capture_by_running

    def noted(*args: Any, **keywords: Any) -> Any:
        captured.append(1)
        time.sleep(0.3)  # the other one comes meanwhile
        return capture(*args, **keywords)

    session.capture_by_running = noted
    options = poptorch.Options().enableExecutableCaching("cache").randomSeed(1)
    options.Distributed.configureProcessId(rank, 2).setFileStore("meeting")
    poptorch.trainingModel(Classifier(), options)(*batch(4))
    dist.barrier()
    return [len(captured), sorted(path.suffix for path in Path("cache").iterdir())]


def wait_for_a_stopped_compiler(rank: int) -> Any:
    """Find the lock of another process, which never lets it go."""
    executable_cache.NOTICE_SECONDS, executable_cache.PATIENCE_SECONDS = 0.2, 0.5
    warned: list[str] = []
    executable_cache.logger.warning = lambda text, *values: warned.append(text % values)
    identity = executable_cache.identity_of
    held = []

    def locked(*args: Any) -> Any:
        name = identity(*args)
        Path("cache", f"{name}.maker").write_text("4321")
        held.append(os.open(f"cache/{name}.lock", os.O_CREAT | os.O_RDWR))
        fcntl.flock(held[0], fcntl.LOCK_EX)
        return name

    executable_cache.identity_of = locked
    options = poptorch.Options().enableExecutableCaching("cache")
    poptorch.inferenceModel(Classifier(), options)(batch(4)[0])
    return warned


def give_the_replicas_of_all(rank: int) -> Any:
    os.environ.update({"POPDIST_NUM_TOTAL_REPLICAS": "4", "POPDIST_NUM_LOCAL_REPLICAS": "2"})
    options = poptorch.Options().replicationFactor(4)
    options.Distributed.configureProcessId(rank, 2)
    return error_of(lambda: poptorch.trainingModel(Classifier(), options)(*batch(8)))


def train_example(rank: int) -> Any:
    losses, accuracy = several_instances.run([
        "--processes", "2", "--process", str(rank), "--meet-at", "meeting", "--checkpoint", f"{rank}.pt",
        "--num-samples", "512", "--global-batch-size", "16", "--epochs", "2",
    ])
    return losses, accuracy, sorted(path.name for path in Path().glob("*.pt"))


def train_example_under_a_launcher(rank: int) -> Any:
    under_torchrun(rank)
    os.environ["POPDIST_NUM_LOCAL_REPLICAS"] = "2"
    return several_instances.run(["--num-samples", "512", "--global-batch-size", "16", "--epochs", "2"])


def train_alike(rank: int) -> Any:
    """Train without a launcher, each process on its half of every batch; return the weights."""
    model = Classifier()
    with torch.no_grad():
        model.body.weight += rank  # those of process 0 count
    options = poptorch.Options().randomSeed(3)
    options.Distributed.configureProcessId(rank, 2).setFileStore("alike")
    options.Training.gradientAccumulation(2)
    training = poptorch.trainingModel(model, options, poptorch.optim.SGD(model.parameters(), lr=0.1))
    for _ in range(3):
        every = [tensor.unflatten(0, (2, 2, 2)) for tensor in batch(8)]  # process, micro-batch, sample
        training(*(tensor[rank].flatten(0, 1) for tensor in every))
    return [parameter.tolist() for parameter in model.parameters()]


SCENARIOS = {
    "alike": Scenario(train_alike, (0, 1)),
    "example": Scenario(train_example, (0, 1)),
    "launched_example": Scenario(train_example_under_a_launcher, (0, 1), AT_A_PORT),
    "popdist": Scenario(ask_popdist, (0, 1), AT_A_PORT),
    "raising": Scenario(raise_in_one, (0, 1)),
    "horovod": Scenario(use_horovod, (0, 1), AT_A_PORT),
    "horovod_rows": Scenario(exchange_rows_by_horovod, (0, 1), AT_A_PORT),
    "horovod_gradients": Scenario(differentiate_horovod, (0, 1), AT_A_PORT),
    "horovod_norm": Scenario(normalise_by_horovod, (0, 1), AT_A_PORT),
    **{f"share_{n}": Scenario(lambda rank, n=n: read_share(rank, n), tuple(range(n))) for n in (1, 2, 4)},
    "cache": Scenario(compile_with_cache, (0, 1)),
    "stopped": Scenario(wait_for_a_stopped_compiler, (0,)),
    "global_replicas": Scenario(give_the_replicas_of_all, (0,)),
}
