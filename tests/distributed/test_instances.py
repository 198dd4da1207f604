"""Several instances: what popdist and horovod answer, who reads which elements, who compiles, and how trainings end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import horovod.torch as hvd
import pytest
import torch

from tests.distributed.forked import ROOT, Outcome, outcomes
from tests.distributed.instances import rows_of
from tests.poptorch.models import Classifier, batch


@pytest.fixture(scope="module")
def ran() -> dict[str, list[Any]]:
    def values(found: list[Outcome]) -> list[Any]:
        assert all(outcome.error is None for outcome in found), [outcome.error for outcome in found]
        return [outcome.value for outcome in found]

    return {name: values(found) for name, found in outcomes("tests.distributed.instances").items()}


def test_popdist_answers_under_torchrun_with_one_replica_an_instance(ran: dict[str, list[Any]]) -> None:
    for rank, found in enumerate(ran["popdist"]):
        assert found["launched"]
        assert found["instances"] == [rank, 2, rank]
        assert found["replicas"] == [2, 1, rank]
        assert (found["options"], found["plain"]) == ([rank, 2, 1], [rank, 2])
        assert found["told"] == [6, 3 * rank, 2]  # with POPDIST_NUM_LOCAL_REPLICAS=3


def test_popdist_forms_a_group_at_init_and_ends_it(ran: dict[str, list[Any]]) -> None:
    for rank, found in enumerate(ran["popdist"]):
        assert "registerCommunicator needs the other instances: call popdist.init() first" in found["before"]
        assert (found["states"], found["after"]) == ([False, True], [False, False])
        assert (found["sum"], found["again"], found["first"]) == (3.0, 6.0, rank == 0)
        assert found["second"].startswith("ValueError: there is a communicator 2 already, of instances [0]")


def test_functions_run_in_the_instances_named_and_raise_there(ran: dict[str, list[Any]]) -> None:
    assert [found["executed"] for found in ran["popdist"]] == [None, 7]
    assert "there are no instances [2]" in ran["popdist"][0]["unknown"]
    assert ran["raising"] == [
        "ZeroDivisionError: division by zero raised in instance 0 of 2, by execute_on_instances", "none",
    ]


def test_horovod_puts_values_of_all_processes_together(ran: dict[str, list[Any]]) -> None:
    for rank, found in enumerate(ran["horovod"]):
        assert found["early"].startswith("ValueError: Horovod has not been initialized; use hvd.init().")
        assert found["place"] == [rank, 2, rank, 2, 0]
        assert (found["mean"], found["sum"], found["in_place"]) == ([1.5, 3.0], [3.0, 6.0], [3.0, 6.0])
        assert (found["least"], found["most"], found["product"]) == ([1.0, 2.0], [2.0, 4.0], [2.0, 8.0])
        assert (found["half"], found["grouped"]) == ([1.5, 3.0], [[3.0, 6.0], [1]])
        assert found["gathered"] == [[0.0, 0.0], [1.0, 1.0], [1.0, 1.0]]
        assert found["gathered_group"] == [[0, 1, 1], [2.0]]
        assert (found["objects"], found["object"]) == ([{"rank": 0}, {"rank": 1}], [1])
        assert (found["broadcast"], found["handle"]) == ([2.0, 4.0], [True, [3.0, 6.0]])
        assert "its result has been taken" in found["taken"]
        assert found["joined"]
        assert found["no_root"].startswith("ValueError: root_rank 2 is no process: they are numbered from 0 to 1")


def test_a_distributed_optimiser_steps_by_the_mean_gradient(ran: dict[str, list[Any]]) -> None:
    first, second = ran["horovod"]
    assert first["weights"] == second["weights"]
    for found in (first, second):
        # The gradients are the inputs: [1, 0] and [1, 1].
        torch.testing.assert_close(torch.tensor(found["moved"]), torch.tensor([[-1.0, -0.5]]))
        assert found["momentum"] == [[1.0, 0.5]]


def test_horovod_gives_each_process_its_rows(ran: dict[str, list[Any]]) -> None:
    first, second = ran["horovod_rows"]
    assert first["even"] == first["later"] == [[0.0], [1.0], [10.0], [11.0]]
    assert second["even"] == second["later"] == [[2.0], [3.0], [12.0], [13.0]]
    assert (first["received"], first["counts"]) == ([[0.0], [10.0], [11.0]], [1, 2])
    assert (second["received"], second["counts"]) == ([[1.0], [2.0]], [2, 0])
    assert (first["shares"], second["shares"]) == ([[5.0], [6.0]], [[7.0], [8.0]])
    assert (first["sums"], second["sums"]) == ([[10.0], [12.0]], [[14.0]])
    assert (first["no_rows"], second["no_rows"]) == ([[6.0, 6.0]], [])
    assert (first["shares_later"], second["shares_later"]) == ([[[10.0]], [[14]]], [[[12.0]], [[16]]])
    for found in (first, second):
        assert found["scalar"].startswith("ValueError: reducescatter takes a tensor with a first dimension")
        assert found["least"].startswith("ValueError: reducescatter has no op 3: use hvd.Average or hvd.Sum")
        assert found["uneven"].startswith("ValueError: alltoall: 3 rows cannot be shared out evenly to 2 processes")
        assert found["splits"].startswith("ValueError: alltoall: splits [1, 2] must have a number for each of 2 proc")


def test_gradients_flow_back_through_horovods_exchanges(ran: dict[str, list[Any]]) -> None:
    # Horovod's own: gradients of means are averaged, of sums summed; those of gathered and of broadcast rows averaged.
    first, second = ran["horovod_gradients"]
    for found in (first, second):
        assert (found["mean"], found["sum"], found["grouped"]) == ([5.5, 11.0], [11.0, 22.0], [11.0, 22.0])
        assert found["sparse"] == [0.5, 0.5, 1.0]
        assert found["sets"].startswith("ValueError: hvd.init: 1 of 2 processes cannot go without the others")
    assert (first["broadcast"], second["broadcast"]) == ([0.0, 0.0], [5.5, 11.0])
    assert (first["gathered"], second["gathered"]) == ([5.5, 0.0], [11.0, 16.5])
    assert (first["gathered_group"], second["gathered_group"]) == ([11.0, 16.5], [27.5, 27.5])
    assert (first["rows"], second["rows"]) == ([1.0, 10.0], [2.0, 20.0])
    assert (first["dealt"], second["dealt"]) == ([1.0, 10.0], [2.0, 3.0])
    for found in (first, second):  # each process has one row, or two and one
        assert found["greatest"] == [10.0, 20.0]
        assert found["share"] == [4.0, 40.0]
        assert found["share_of_three"] == [2.0 * (1.0 + 10.0), 4.0]


def test_horovods_batch_norm_is_that_of_one_batch(ran: dict[str, list[Any]]) -> None:
    found = [
        {name: torch.tensor(value, dtype=torch.float64) for name, value in process.items() if name != "alone"}
        for process in ran["horovod_norm"]
    ]
    for process in ran["horovod_norm"]:
        assert process["alone"].startswith("ValueError: Expected more than 1 value per channel when training")
    values = torch.cat([rows_of(rank) for rank in range(2)]).requires_grad_()
    layer = torch.nn.BatchNorm1d(4, momentum=0.2).double()
    result = layer(values)
    (result.square() * torch.arange(1.0, 5).reshape(4, 1)).sin().sum().backward()
    layer.eval()
    judged = {"result": result.detach(), "values": values.grad, "evaluated": layer(values).detach()}
    for name, expected in judged.items():
        assert expected is not None
        torch.testing.assert_close(torch.cat([process[name] for process in found]), expected)
    for process in found:
        torch.testing.assert_close(process["mean"], layer.running_mean)
        torch.testing.assert_close(process["variance"], layer.running_var)
        assert process["count"] == 1
    for name in ("weight", "bias"):
        torch.testing.assert_close(found[0][name] + found[1][name], getattr(layer, name).grad)
    cumulative = torch.nn.BatchNorm1d(2, momentum=None, affine=False).double()
    for step in range(2):
        cumulative(values.detach()[:, :2, 0] * (1 + step))
    for process in found:
        torch.testing.assert_close(process["mean_of_all"], cumulative.running_mean)
        torch.testing.assert_close(process["variance_of_all"], cumulative.running_var)


def test_horovods_batch_norm_of_one_process_is_torchs() -> None:
    hvd.init()
    try:
        values = torch.randn(5, 3, 2, 2)
        torch.testing.assert_close(hvd.SyncBatchNorm(3)(values), torch.nn.BatchNorm2d(3)(values))
        with pytest.raises(ValueError, match="at least 2D"):
            hvd.SyncBatchNorm(3)(torch.randn(3))
        received, counts = hvd.alltoall(values, splits=[5])
        assert torch.equal(received, values)
        assert counts.tolist() == [5]
    finally:
        hvd.shutdown()


def test_horovod_without_a_launcher_is_one_process() -> None:
    hvd.init()
    try:
        assert (hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), hvd.is_homogeneous()) == (0, 1, 0, 1, True)
        value = torch.tensor([1.0, 2.0])
        assert hvd.allreduce(value).tolist() == hvd.allgather(value).tolist() == [1.0, 2.0]
        assert (hvd.broadcast_object(3), hvd.allgather_object(3), hvd.join()) == (3, [3], 0)
        with pytest.raises(ValueError, match="there is no op 6"):
            hvd.allreduce(value, op=6)
        for exchange in (hvd.allreduce, hvd.reducescatter, hvd.allgather, hvd.alltoall, lambda x: hvd.broadcast(x, 0)):
            weight = torch.tensor([1.0, 2.0], requires_grad=True)
            (exchange(weight) * weight.detach()).sum().backward()
            assert weight.grad.tolist() == [1.0, 2.0]
    finally:
        hvd.shutdown()
    assert not hvd.is_initialized()


def test_what_horovod_was_built_with_and_where_its_names_lie() -> None:
    from horovod.torch import compression, functions, mpi_ops, optimizer

    assert hvd.gloo_built()
    assert hvd.gloo_enabled()
    for ask in ("mpi_built", "mpi_enabled", "mpi_threads_supported", "nccl_built", "cuda_built", "ddl_built"):
        assert not getattr(hvd, ask)(), ask
    assert mpi_ops.allreduce_async_ is hvd.allreduce_async_
    assert functions.broadcast_parameters is hvd.broadcast_parameters
    assert compression.Compression is hvd.Compression
    assert optimizer.DistributedOptimizer is hvd.DistributedOptimizer


def test_an_installed_horovod_comes_first(tmp_path: Path) -> None:
    package = tmp_path / "horovod"
    package.mkdir()
    (package / "__init__.py").write_text("whose = 'theirs'")
    paths = os.pathsep.join([str(ROOT / "aliases"), str(ROOT), str(tmp_path)])
    done = subprocess.run(
        [sys.executable, "-c", "import horovod; print(horovod.whose)"], capture_output=True, text=True, check=False,
        env=os.environ | {"PYTHONPATH": paths},
    )
    assert done.stdout == "theirs\n", done.stderr
    assert "torchipu stands aside" in done.stderr


@pytest.mark.parametrize("size", [1, 2, 4])
def test_any_number_of_processes_sees_each_element_once(ran: dict[str, list[Any]], size: int) -> None:
    read = ran[f"share_{size}"]
    used = 30 // (2 * size) * 2 * size
    for epoch in range(3):
        blocks, shuffled, whole = (
            [n for process in read for n in process[name][epoch]] for name in ("blocks", "shuffled", "whole")
        )
        assert blocks == list(range(used))
        assert len(shuffled) == len(set(shuffled)) == used
        assert shuffled != sorted(shuffled)
        assert whole == list(range(30))
    if size > 1:  # a single process has torch's own order, without a memory of what it left out
        for epoch in range(2):
            seen = {n for process in read for n in process["shuffled"][epoch] + process["shuffled"][epoch + 1]}
            assert seen == set(range(30))


@pytest.mark.parametrize("name", ["example", "launched_example"])
def test_the_example_trains_in_two_processes_which_agree_on_losses_and_accuracy(
    ran: dict[str, list[Any]], name: str,
) -> None:
    first, second = ran[name]
    assert first[:2] == second[:2]
    losses, accuracy = first[:2]
    assert losses[1] < losses[0]
    assert accuracy > 0.5
    if name == "example":
        assert first[2] == ["0.pt"]  # one process writes


def test_two_processes_train_as_eager_pytorch_does_on_their_batches_together(ran: dict[str, list[Any]]) -> None:
    model = Classifier().double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        x, y = batch(8)
        optimizer.zero_grad()
        model(x.double(), y)[1].backward()
        optimizer.step()
    first, second = ran["alike"]
    assert first == second
    for found, wanted in zip(first, model.parameters(), strict=True):
        torch.testing.assert_close(torch.tensor(found).double(), wanted.detach(), rtol=1e-5, atol=1e-6)


def test_one_process_compiles_and_the_others_find_it_in_the_cache(ran: dict[str, list[Any]]) -> None:
    assert sum(captures for captures, _ in ran["cache"]) == 1
    assert ran["cache"][0][1] == [".executable"]


def test_who_waits_for_a_stopped_compiler_says_so_and_compiles_alone(ran: dict[str, list[Any]]) -> None:
    warned, = ran["stopped"]
    assert any("waits for process 4321 to compile the same model" in text for text in warned)
    assert "compiles the model itself: process 4321 takes too long" in warned[-1]


def test_replicas_of_all_processes_where_those_of_one_are_meant_are_refused(ran: dict[str, list[Any]]) -> None:
    text, = ran["global_replicas"]
    assert "replicationFactor counts replicas per process: the launcher has 4 in all and gave this process 2" in text


def test_trainings_with_a_fault_end_soon_and_name_it(is_thorough: bool) -> None:
    """A few of ``make faults``; the training is under poprun, and instances of it die, stop and raise."""
    every = ("KILL at mid epoch in 1 of 2", "exception at compile in 0 of 2", "STOP at save in 1 of 2")
    cases = every if is_thorough else every[:1]
    done = subprocess.run(
        # The machine may be busy with other tests; make faults expects 10 seconds.
        [sys.executable, "-m", "tests.distributed.faults", "--at-once", "3", "--exchange-seconds", "10",
         "--seconds", "40",
         *(word for case in cases for word in ("--case", case))],
        cwd=ROOT, capture_output=True, text=True, timeout=300, check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(cases)} of {len(cases)} as they must be" in done.stdout
