"""Horovod's names as its programs use them: signatures, sets of processes, compressors, sparse gradients, failures."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Iterator
from typing import Any

import horovod.torch as hvd
import pytest
import torch

from tests.distributed.forked import Outcome, outcomes
from tests.distributed.process_sets import DIFFERENT, EXCHANGES, FEW_AND_MANY, OPS, RANKS, own_rows

# Horovod 0.28's parameters, in their order: programs give them by position.
SCALES = "prescale_factor postscale_factor"
REDUCED = f"average name op {SCALES} process_set"
SCATTERED = f"op process_set {SCALES}"
SIGNATURES = {
    "allreduce": f"tensor average name compression op {SCALES} process_set", "allreduce_": f"tensor {REDUCED}",
    "allreduce_async": f"tensor {REDUCED}", "allreduce_async_": f"tensor {REDUCED}",
    "grouped_allreduce": f"tensors average name compression op {SCALES} process_set",
    "grouped_allreduce_": f"tensors {REDUCED}", "grouped_allreduce_async": f"tensors {REDUCED}",
    "grouped_allreduce_async_": f"tensors {REDUCED}", "sparse_allreduce_async": "tensor name op process_set",
    "allgather": "tensor name process_set", "allgather_async": "tensor name process_set",
    "grouped_allgather": "tensors name process_set", "grouped_allgather_async": "tensors name process_set",
    "broadcast": "tensor root_rank name process_set", "broadcast_": "tensor root_rank name process_set",
    "broadcast_async": "tensor root_rank name process_set", "broadcast_async_": "tensor root_rank name process_set",
    "alltoall": "tensor splits name process_set", "alltoall_async": "tensor splits name process_set",
    "reducescatter": f"tensor name compression {SCATTERED}", "reducescatter_async": f"tensor name {SCATTERED}",
    "grouped_reducescatter": f"tensors name compression {SCATTERED}",
    "grouped_reducescatter_async": f"tensors name {SCATTERED}", "join": "device", "barrier": "process_set",
    "poll": "handle", "synchronize": "handle", "init": "comm process_sets", "shutdown": "",
    "add_process_set": "process_set", "remove_process_set": "process_set", "ProcessSet": "ranks_or_comm",
    "broadcast_parameters": "params root_rank", "broadcast_optimizer_state": "optimizer root_rank model",
    "broadcast_object": "obj root_rank name process_set", "allgather_object": "obj name",
    "DistributedOptimizer": "optimizer named_parameters compression backward_passes_per_step op "
                            "gradient_predivide_factor num_groups groups sparse_as_dense process_set",
}
WITHOUT_ARGUMENTS = (
    "is_initialized", "size", "local_size", "cross_size", "rank", "local_rank", "cross_rank", "is_homogeneous",
    "mpi_threads_supported", "mpi_enabled", "mpi_built", "gloo_enabled", "gloo_built", "nccl_built", "ddl_built",
    "ccl_built", "cuda_built", "rocm_built",
)


@pytest.fixture(scope="module")
def ran() -> dict[str, list[Any]]:
    def values(found: list[Outcome]) -> list[Any]:
        assert all(outcome.error is None for outcome in found), [outcome.error for outcome in found]
        return [outcome.value for outcome in found]

    return {name: values(found) for name, found in outcomes("tests.distributed.process_sets").items()}


@pytest.fixture
def alone() -> Iterator[None]:
    hvd.init()
    try:
        yield
    finally:
        hvd.shutdown()


@pytest.mark.parametrize(("name", "parameters"), [*SIGNATURES.items(), *((name, "") for name in WITHOUT_ARGUMENTS)])
def test_every_name_takes_horovods_arguments_in_horovods_order(name: str, parameters: str) -> None:
    assert [*inspect.signature(getattr(hvd, name)).parameters] == parameters.split()


def test_its_normalisation_has_horovods_arguments_before_torchs_own() -> None:
    names = [*inspect.signature(hvd.SyncBatchNorm).parameters]
    assert names[:5] == ["num_features", "eps", "momentum", "affine", "track_running_stats"]


@pytest.mark.parametrize("name", ["elastic", "start_timeline", "stop_timeline"])
def test_what_is_not_there_is_refused_with_what_to_do(name: str) -> None:
    with pytest.raises(AttributeError, match=rf"no attribute '{name}', and not in torchipu's horovod: \w+"):
        getattr(hvd, name)


def test_horovods_launcher_is_refused_with_ours() -> None:
    import horovod

    with pytest.raises(AttributeError, match="no attribute 'run', and not in torchipu's: start processes by poprun"):
        horovod.run  # noqa: B018
    assert not hasattr(horovod, "nothing")


def test_arguments_by_position_reach_the_exchange(alone: None) -> None:
    values = torch.tensor([[2.0], [4.0]])
    found = [
        hvd.allreduce_async(values, None, "v", hvd.Sum, 2.0, 3.0), hvd.allreduce_async_(values.clone(), False, "v"),
        hvd.reducescatter_async(values, "v", hvd.Sum, hvd.global_process_set, 2.0), hvd.broadcast_async(values, 0),
        hvd.alltoall_async(values), hvd.allgather_async(values[0, 0]),
    ]
    assert [hvd.synchronize(handle).flatten().tolist() for handle in found] == [
        [12.0, 24.0], [2.0, 4.0], [4.0, 8.0], [2.0, 4.0], [2.0, 4.0], [2.0],
    ]
    with pytest.raises(TypeError, match="compression"):
        hvd.allreduce_async(values, compression=hvd.Compression.none)


def test_a_reduction_is_a_scatter_and_a_gathering_in_gradients_too(ran: dict[str, list[Any]]) -> None:
    whole = torch.stack([own_rows(rank) for rank in RANKS])
    weights = torch.linspace(1, 2, 10, dtype=torch.float64).reshape(5, 2) * 111
    for name in OPS:
        count = len(RANKS) if name == "mean" else 1
        for found in ran["two_ways"]:
            for values, gradients in found[name]:
                torch.testing.assert_close(torch.tensor(values, dtype=torch.float64), whole.sum(0) * 1.5 / count)
                torch.testing.assert_close(torch.tensor(gradients, dtype=torch.float64), weights * 1.5 / count)


def test_processes_of_a_set_exchange_among_themselves(ran: dict[str, list[Any]]) -> None:
    first, middle, last = ran["sets"]
    ends = [own_rows(0), own_rows(2)]
    for rank, found in ((0, first), (1, last)):
        assert found["ends"] == [2, rank, True]
        torch.testing.assert_close(torch.tensor(found["mean"], dtype=torch.float64), (ends[0] + ends[1]) / 2)
        assert found["rows"] == [*ends[0][:1, 0], *ends[1][:3, 0]]
        assert found["dealt"] == [*ends[0][2 * rank : 2 * rank + 2, 0], *ends[1][2 * rank : 2 * rank + 2, 0]]
        assert found["split"] == [rank + 1, rank + 1]
        assert found["share"] == (ends[0] + ends[1])[:, 0].tolist()[3 * rank : 3 + 2 * rank]
        assert (found["root"], found["object"]) == (ends[1][0].tolist(), [2])
        assert found["turned"] == ends[1].t().tolist()
        assert found["outside"].startswith("ValueError: root_rank 1 is not in ProcessSet(process_set_id=1, ")
        assert found["later"] == (ends[0] + ends[1])[0].tolist()
        assert found["not_in"].startswith(f"ValueError: process {2 * rank} is not in ProcessSet(process_set_id=2")
        weights = torch.linspace(1, 2, 20, dtype=torch.float64).reshape(2, 5, 2)[rank] * 101 / 2
        torch.testing.assert_close(torch.tensor(found["gradients"][1], dtype=torch.float64), weights)
        assert found["weight"] == -2.0
    assert middle["ends"] == [2, None, False]
    assert middle["alone"] == own_rows(1).tolist()
    assert middle["weight"] == -2.0  # its own
    for rank, found in enumerate(ran["sets"]):
        assert found["all"] == [3, rank, True]
        assert (found["removed"], found["again"], found["after"]) == ([True, False, None], True, None)


def test_sets_that_cannot_be_are_refused(ran: dict[str, list[Any]]) -> None:
    for found in ran["sets"]:
        assert found["early"][:2] == [None, None]
        assert found["early"][2].startswith("ValueError: Horovod has not been initialized; use hvd.init().")
        assert found["twice"].startswith("ValueError: there is a process set of [0, 2] already")
        assert found["whole"].startswith("ValueError: there is a process set of [0, 1, 2] already: hvd.global")
        assert found["far"].startswith("ValueError: there are no processes [3]: they are numbered from 0 to 2")
    for wrong in ([0, 0], ["0"], 0):
        with pytest.raises(ValueError, match="ProcessSet takes the numbers of its processes"):
            hvd.ProcessSet(wrong)


def test_sets_are_asked_for_when_they_are_there(alone: None) -> None:
    for copied in (copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))):
        assert copied(hvd.global_process_set) is hvd.global_process_set
    with pytest.raises(ValueError, match=r"was not added: give it to hvd\.init"):
        hvd.allreduce(torch.ones(1), process_set=hvd.ProcessSet([0]))
    with pytest.raises(ValueError, match=r"process_set must be a hvd\.ProcessSet, got a list"):
        hvd.allreduce(torch.ones(1), process_set=[0])
    with pytest.raises(ValueError, match="a process set needs at least one process"):
        hvd.add_process_set([])
    with pytest.raises(ValueError, match="'dynamic', got 'all'"):
        hvd.init(process_sets="all")
    hvd.init(process_sets="dynamic")
    assert not hvd.remove_process_set(hvd.global_process_set)


def test_values_travel_as_a_compressor_says(ran: dict[str, list[Any]]) -> None:
    for rank, found in enumerate(ran["compressed"]):
        assert (found["sum"], found["weight"], found["ints"]) == ([0.75, 4.5], [-0.75, -4.5], [9])
        assert found["share"] == [[0.75, 4.5], [0.75], [4.5]][rank]


def test_sparse_gradients_stay_sparse_and_are_those_of_all(ran: dict[str, list[Any]]) -> None:
    table = torch.nn.Embedding(5, 2, sparse=True)
    torch.nn.init.ones_(table.weight)
    optimizer = torch.optim.SparseAdam(table.parameters(), lr=0.1)
    (sum((table(torch.tensor([rank, 3, 3])) * rank).sum() for rank in (1, 2)) / 3).backward()
    gradient = table.weight.grad
    optimizer.step()
    for found in ran["sparse"]:
        for is_sparse, gradients, weights in found.values():
            assert is_sparse
            torch.testing.assert_close(torch.tensor(gradients), gradient.to_dense())
            torch.testing.assert_close(torch.tensor(weights), table.weight.detach())


def test_sparse_tensors_are_added_up_by_their_own_exchange(alone: None) -> None:
    sparse = torch.tensor([[0.0, 2.0], [0.0, 0.0]]).to_sparse()
    assert torch.equal(hvd.sparse_allreduce_async(sparse, "s", hvd.Sum)().to_dense(), sparse.to_dense())
    with pytest.raises(ValueError, match=r"allreduce takes dense tensors: use hvd\.sparse_allreduce_async"):
        hvd.allreduce(sparse)
    with pytest.raises(ValueError, match=r"takes tensors in the layout torch.sparse_coo: use hvd\.allreduce"):
        hvd.sparse_allreduce_async(sparse.to_dense(), "s", hvd.Sum)
    with pytest.raises(ValueError, match="has no op 4"):
        hvd.sparse_allreduce_async(sparse, "s", hvd.Max)


def test_what_is_compiled_exchanges_between_its_graphs(ran: dict[str, list[Any]]) -> None:
    for found in ran["graphs"]:
        for name in EXCHANGES:
            eager, compiled = found[name]
            for one, other in zip(eager, compiled, strict=True):
                torch.testing.assert_close(torch.tensor(other), torch.tensor(one), msg=name)
        assert "hvd.allgather was called within a model that is captured" in found["captured"]


def test_values_that_are_no_tensors_are_refused(alone: None) -> None:
    for exchange in (hvd.allreduce, hvd.allgather, hvd.reducescatter, hvd.alltoall, hvd.allreduce_async):
        with pytest.raises(TypeError, match=r"hvd\.\w+ takes tensors, got float: torch\.tensor"):
            exchange(3.0)
    with pytest.raises(TypeError, match="takes tensors, got int"):
        hvd.grouped_allreduce([torch.ones(1), 3])
    assert hvd.allreduce(torch.tensor([1 + 2j])).tolist() == [1 + 2j]


def test_a_distributed_optimiser_is_copied_and_pickled_whole(alone: None) -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    plain = torch.optim.SGD([weight], lr=0.5, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(plain, compression=hvd.Compression.fp16, backward_passes_per_step=2)
    optimizer.set_backward_passes_per_step(3)
    for copied in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        assert (type(copied).__name__, copied.backward_passes_per_step) == ("DistributedSGD", 3)
        other = copied.param_groups[0]["params"][0]
        assert other is not weight
        other.grad = torch.ones(2)
        copied.step()
        assert other.tolist() == [0.5, 0.5]
    with pytest.raises(ValueError, match="must be > 0, got 0"):
        optimizer.set_backward_passes_per_step(0)


def test_an_exchange_that_fails_raises_horovods_error(ran: dict[str, list[Any]]) -> None:
    from horovod.common.exceptions import HorovodInternalError

    assert HorovodInternalError is hvd.HorovodInternalError
    first, gone, last = ran["lost"]
    assert gone == "gone"
    for found in (first, last):
        assert found.startswith("HorovodInternalError: an exchange with the other processes failed: ")


def test_processes_that_do_not_do_the_same_are_told_what_each_asks_for(ran: dict[str, list[Any]]) -> None:
    told = {
        "shape": "process 1 allreduce(float32[3], op=Average); process 2 allreduce(float32[4], op=Average)",
        "same_total": "process 0 allreduce(float32[3, 2], op=Average); processes 1, 2 allreduce(float32[2, 3], ",
        "dtype": "processes 0, 1 allreduce(float32[3], op=Average); process 2 allreduce(float64[3], op=Average)",
        "op": "process 0 allreduce(float32[3], op=Sum); processes 1, 2 allreduce(float32[3], op=Max)",
        "factor": "process 0 allreduce(float32[3], op=Average, prescale_factor=0.0); process 1 allreduce(",
        "rows": "process 0 allgather(float32[3]); process 1 allgather(float32[4])",
        "number": "process 0 allreduce(float32[1], op=Average); process 1 allreduce(float32[1], float32[1], op=",
        "many": "processes 0, 2 allreduce(float32[2], op=Average, the tensor at 7 of 9); process 1 allreduce(",
        "dealt": "process 0 alltoall(float32[1]); process 1 alltoall(float32[2]); process 2 alltoall(float32[3])",
        "sent": "process 0 broadcast(float32[3], root_rank=0); process 1 broadcast(float32[4], root_rank=0)",
        "root": "process 1 broadcast(float32[3], root_rank=1); process 2 broadcast(float32[3], root_rank=2)",
        "object": "process 0 broadcast_object(root_rank=0); process 1 broadcast_object(root_rank=1)",
        "other": "process 0 reducescatter(float32[3], op=Average); processes 1, 2 broadcast(float32[3], root_rank=0)",
        "gathered": "process 0 allgather(float32[]); processes 1, 2 allgather_object()",
        "barrier": "process 0 allreduce(float32[3], op=Average); processes 1, 2 barrier()",
        "set": "processes 0, 2 add_process_set([0, 1]); process 1 add_process_set([0, 2])",
        "joined": "to nothing else: processes 0, 2 broadcast(float32[3], root_rank=0); process 1 join()",
        "joined_max": "to nothing else: processes 0, 2 allreduce(float32[3], op=Max); process 1 join()",
    }
    assert told.keys() == DIFFERENT.keys()
    for found in ran["different"]:
        for name, words in told.items():
            said, after = found[name]
            assert said.startswith("HorovodInternalError: "), name
            assert words in said, said
            assert after == [1.0, 1.0], name


def test_processes_that_have_joined_give_zeros(ran: dict[str, list[Any]]) -> None:
    steps = [  # of three processes, of the last two, of the last
        ([6.0, 222.0], [1.0, 37.0], [0, 0, 1, 1, 2, 2], [[1.5, 55.5], [1]]),
        ([4.0, 220.0], [2 / 3, 110 / 3], [11, 11, 12, 12], [[1.0, 55.0], [1]]),
        ([2.0, 200.0], [1 / 3, 100 / 3], [22, 22], [[0.5, 50.0], [1]]),
    ]
    for rank, found in enumerate(ran["ends"]):
        for step, (sums, means, rows, ints) in enumerate(steps[: rank + 1]):
            assert found["sums"][step] == sums
            assert found["means"][step] == pytest.approx(means)
            assert found["rows"][step] == rows
            assert found["ints"][step] == ints
        assert (found["last"], found["again"]) == (2, 0)
        # Each step of three, two and one process: the mean of as many ones and zeros, times the learning rate.
        moved = [-3.0, -2.0, -1.0][: 3 - rank]
        assert found["weight"] == pytest.approx(sum(moved))
        assert found["table"] == pytest.approx([*moved, *[0.0] * (4 - len(moved))])


def test_few_values_go_round_with_what_is_asked_for_and_many_after_it(ran: dict[str, list[Any]]) -> None:
    for found in ran["few"]:
        assert found["wrong"] == []
        exchanges = found["exchanges"]
        assert [exchanges[f"{count} torch.float32"] for count in FEW_AND_MANY] == [1, 1, 1, 1, 2, 2, 2]
        assert [exchanges[f"{count} torch.uint8"] for count in FEW_AND_MANY] == [1, 1, 1, 1, 1, 1, 2]
        assert (exchanges["of one type"], exchanges["of two types"]) == (1, 3)


def test_bools_are_compared_and_not_summed(alone: None) -> None:
    given = torch.tensor([True, False])
    assert hvd.allreduce(given, op=hvd.Max).tolist() == [True, False]
    for op in (hvd.Average, hvd.Sum, hvd.Product):
        with pytest.raises(TypeError, match=r"allreduce has no sums and products of bools: give tensor\.int\(\)"):
            hvd.allreduce(given, op=op)
    with pytest.raises(TypeError, match="reducescatter has no sums and products of bools"):
        hvd.reducescatter(given)


def test_factors_of_integers_are_exact(alone: None) -> None:
    large = 2**40 + 1
    found = hvd.allreduce(torch.tensor([large]), op=hvd.Sum, prescale_factor=2.0, postscale_factor=2.0)
    assert found.tolist() == [4 * large]


def test_a_distributed_optimiser_checks_what_it_is_given(alone: None) -> None:
    model = torch.nn.Linear(2, 1)
    plain = torch.optim.SGD(model.parameters(), lr=1.0)
    named = list(model.named_parameters())
    for more, told in (
        ({"named_parameters": [p for _, p in named]}, "should be a sequence of tuples"),
        ({"named_parameters": [("w", p) for _, p in named]}, "must be unique. Found duplicates: w"),
        ({"named_parameters": named[:1]}, r"not named: the optimiser has others of shape \(1,\)"),
        ({"backward_passes_per_step": 0}, "must be > 0, got 0"),
        ({"gradient_predivide_factor": 2.0, "op": hvd.Sum}, "not supported with op != Average"),
        ({"op": hvd.Max}, r"DistributedOptimizer has no op 4: use hvd\.Average, hvd\.Sum or hvd\.Adasum"),
        ({"process_set": [0]}, r"process_set must be a hvd\.ProcessSet, got a list"),
    ):
        with pytest.raises(ValueError, match=told):
            hvd.DistributedOptimizer(plain, **more)
    made = hvd.DistributedOptimizer(plain, iter(named), gradient_predivide_factor=2.0)
    assert isinstance(made, torch.optim.SGD)
    with pytest.raises(ValueError, match="DistributedSGD is distributed already: give the optimiser that it was made"):
        hvd.DistributedOptimizer(made)
    with pytest.raises(TypeError, match=r"takes an optimiser of torch\.optim, got a generator"):
        hvd.DistributedOptimizer(model.parameters())
