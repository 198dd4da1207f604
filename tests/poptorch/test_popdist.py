"""`popdist`: what a launcher tells an instance, and options that follow it."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
import torch

import torchipu.poptorch as poptorch
from tests.poptorch.data_sets import Numbers
from tests.poptorch.models import Classifier, batch
from torchipu import popdist
from torchipu.popdist.poptorch import Options

LAUNCHED = {
    "NUM_TOTAL_REPLICAS": "4", "NUM_LOCAL_REPLICAS": "2", "NUM_IPUS_PER_REPLICA": "2", "REPLICA_INDEX_OFFSET": "2",
    "LOCAL_INSTANCE_INDEX": "1", "UNIFORM_REPLICAS_PER_INSTANCE": "1",
}


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in LAUNCHED:
        monkeypatch.delenv(f"POPDIST_{name}", raising=False)


@pytest.fixture
def launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in LAUNCHED.items():
        monkeypatch.setenv(f"POPDIST_{name}", value)


def test_popdist_and_its_submodule_are_imported_under_their_own_names() -> None:
    assert importlib.import_module("popdist") is popdist
    assert importlib.import_module("popdist.poptorch").Options is Options


def test_without_a_launcher_there_is_one_instance_with_one_replica_of_any_width() -> None:
    assert not popdist.isPopdistEnvSet()
    assert (popdist.getInstanceIndex(), popdist.getNumInstances(), popdist.getLocalInstanceIndex()) == (0, 1, 0)
    assert (popdist.getNumTotalReplicas(), popdist.getNumLocalReplicas(), popdist.getReplicaIndexOffset()) == (1, 1, 0)
    assert popdist.getNumIpusPerReplica() == 1
    assert popdist.checkNumIpusPerReplica(4)
    assert popdist.getDeviceId(4) == 0
    assert popdist.execute_on_instances({0}, max, 3, 5) == 5


@pytest.mark.usefixtures("launcher")
def test_a_launcher_says_which_of_how_many_instances_this_is() -> None:
    assert popdist.isPopdistEnvSet()
    assert (popdist.getInstanceIndex(), popdist.getNumInstances(), popdist.getLocalInstanceIndex()) == (1, 2, 1)
    assert (popdist.getNumTotalReplicas(), popdist.getNumLocalReplicas(), popdist.getReplicaIndexOffset()) == (4, 2, 2)
    assert popdist.getNumIpusPerReplica() == 2
    assert popdist.checkNumIpusPerReplica(2)
    assert popdist.getDeviceId(2) == 1
    assert popdist.execute_on_instances({1}, sorted, [2, 1], reverse=True) == [2, 1]
    assert popdist.execute_on_instances({0}, pytest.fail) is None


@pytest.mark.usefixtures("launcher")
def test_what_an_instance_raises_names_it_where_there_are_others(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ZeroDivisionError) as raised:
        popdist.execute_on_instances({1}, divmod, 1, 0)
    assert raised.value.__notes__ == ["raised in instance 1 of 2, by execute_on_instances"]
    monkeypatch.setenv("POPDIST_NUM_TOTAL_REPLICAS", "2")
    monkeypatch.setenv("POPDIST_REPLICA_INDEX_OFFSET", "0")
    with pytest.raises(ZeroDivisionError) as raised:
        popdist.execute_on_instances({0}, divmod, 1, 0)
    assert not hasattr(raised.value, "__notes__")


def test_instances_form_a_group_once_and_end_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr("torchipu.distributed.group.form", lambda *place: asked.append(place))
    monkeypatch.setattr("torchipu.distributed.group.end", lambda: asked.append("end"))
    for name, value in LAUNCHED.items():
        monkeypatch.setenv(f"POPDIST_{name}", value)
    popdist.finalizeBackend()
    popdist.init()
    assert asked == [(1, 2)]
    popdist.registerDefaultBackend()
    assert popdist.isBackendInitialized()
    popdist.finalizeBackend()
    popdist.finalizeBackend()
    assert not popdist.isBackendInitialized()
    assert asked == [(1, 2), "end"]
    for name in LAUNCHED:
        monkeypatch.delenv(f"POPDIST_{name}")
    popdist.init()
    popdist.finalizeBackend()
    assert asked == [(1, 2), "end"], "a single instance has nobody to find"


@pytest.mark.usefixtures("launcher")
def test_what_cannot_be_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeError, match="needs 4 IPUs, and the launcher was told 2: give it --ipus-per-replica 4"):
        Options(ipus_per_replica=4)
    with pytest.raises(ValueError, match=r"there are no instances \[2\]: they are numbered from 0 to 1"):
        popdist.execute_on_instances({1, 2}, print)
    monkeypatch.setenv("POPDIST_UNIFORM_REPLICAS_PER_INSTANCE", "0")
    with pytest.raises(RuntimeError, match="no common number of replicas: 4 in all, 2 here"):
        popdist.getInstanceIndex()
    monkeypatch.setenv("POPDIST_NUM_LOCAL_REPLICAS", "none")
    with pytest.raises(RuntimeError, match="POPDIST_NUM_LOCAL_REPLICAS must be a whole number from 1, got 'none'"):
        popdist.getNumLocalReplicas()


def test_init_and_finalise_follow_each_other() -> None:
    popdist.init()
    assert popdist.isBackendInitialized()
    popdist.finalizeBackend()
    assert not popdist.isBackendInitialized()


@pytest.mark.usefixtures("launcher")
def test_options_take_replicas_instance_and_device_from_the_launcher_and_share_out_the_data() -> None:
    options = Options(ipus_per_replica=2)
    assert (options.replication_factor, options.ipu_id) == (2, 1)
    assert (options.Distributed.processId, options.Distributed.numProcesses) == (1, 2)
    assert isinstance(options.clone(), Options)
    assert isinstance(options, poptorch.Options)
    options.deviceIterations(3).randomSeed(1)
    assert [y.tolist() for _, y in poptorch.DataLoader(options, Numbers(24), batch_size=2)] == [list(range(12, 24))]


@pytest.mark.parametrize(("name", "arguments"), [
    ("replicationFactor", (2,)), ("useIpuId", (0,)), ("Distributed.disable", ()),
    ("Distributed.setEnvVarNames", ("A", "B")), ("Distributed.configureProcessId", (0, 1)),
])
def test_options_refuse_to_change_what_the_launcher_decides(name: str, arguments: tuple[object, ...]) -> None:
    options = Options()
    group = options.Distributed if name.startswith("Distributed") else options
    with pytest.raises(RuntimeError, match=f"Cannot call `{name}` with popdist.poptorch.Options: the launcher decides"):
        getattr(group, name.removeprefix("Distributed."))(*arguments)


@pytest.mark.usefixtures("launcher")
@pytest.mark.parametrize(("name", "chosen"), [
    ("replication_factor", 2), ("ipu_id", 1), ("num_distributed_processes", 2), ("distributed_process_id", 1),
])
def test_options_refuse_to_change_by_name_what_the_launcher_decides(name: str, chosen: int) -> None:
    options = Options().clone()
    group = options.Distributed if "distributed" in name else options
    for change in (lambda n: setattr(group, name, n), lambda n: group.set(**{name: n}),
                   lambda n: group.createOrSet(**{name: n})):
        with pytest.raises(RuntimeError, match=f"Cannot set `{name}` to 3 with .*: the launcher has chosen {chosen}"):
            change(3)
        change(chosen)  # which is no change
    assert group(name) == chosen


def test_a_program_written_for_a_launcher_trains_without_one() -> None:
    options = Options()
    options.Training.gradientAccumulation(2)
    model = Classifier()
    before = model.head.weight.detach().clone()
    training = poptorch.trainingModel(model, options)
    training(*batch(8))
    assert not torch.equal(model.head.weight, before)
    training.destroy()


def test_options_of_a_launcher_compile_for_a_machine_that_is_not_there(tmp_path: Path) -> None:
    options = Options().useOfflineIpuTarget()
    assert not options.exists("ipu_id")
    training = poptorch.trainingModel(Classifier(), options)
    training.compileAndExport(str(tmp_path / "model.poptorch"), *batch(2))
    assert (tmp_path / "model.poptorch").exists()
    with pytest.raises(AssertionError, match="Trying to run a model on an offline device"):
        training(*batch(2))
