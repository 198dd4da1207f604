"""Options: defaults, setters, what they refuse, freezing, copies and text."""

from __future__ import annotations

import copy
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from torchipu import poptorch
from torchipu.poptorch.options import Options
from torchipu.poptorch.options.values import OptionsDict

DEFAULTS = {
    "replication_factor": 1,
    "input_group_size": 1,
    "input_cgt": poptorch.CommGroupType.Consecutive,
    "broadcast_buffers": True,
    "device_iterations": 1,
    "log_dir": ".",
    "max_repeat_logs": 4,
    "auto_round_num_ipus": False,
    "anchored_tensors": {},
    "output_mode": 4,
    "output_return_period": 1,
    "connection_type": 0,
    "sync_pattern": 0,
    "available_memory_proportion": {},
}


# ---------------------------------------------------------------------- reading
def test_defaults() -> None:
    options = Options()
    assert {name: options(name) for name in DEFAULTS} == DEFAULTS
    assert options.Training.gradient_accumulation == 1
    assert options.Training.accumulation_and_replication_reduction_type is poptorch.ReductionType.Mean
    assert (
        options.Training.meanAccumulationAndReplicationReductionStrategy is poptorch.MeanReductionStrategy.Post
    )
    assert options._Popart.options == {"instrumentWithHardwareCycleCounter": False, "rearrangeAnchorsOnHost": False}
    assert (options.Distributed.processId, options.Distributed.numProcesses) == (0, 1)
    assert options._popart is options._Popart is options.Popart


@pytest.mark.parametrize("name", ["random_seed", "ipu_id", "ipu_version", "use_model", "model_name"])
def test_options_made_on_demand_are_not_there_before(name: str) -> None:
    options = Options()
    assert not options.exists(name)
    with pytest.raises(AttributeError, match=f"Invalid attribute {name}"):
        getattr(options, name)


def test_unknown_names_are_refused_for_reading_and_writing() -> None:
    options = Options()
    with pytest.raises(AttributeError, match="Invalid attribute replicationfactor"):
        options.replicationfactor = 2
    with pytest.raises(AttributeError, match="Invalid private attribute _relax"):
        options._relax = True
    with pytest.raises(AttributeError, match="Invalid attribute gradientAccumulation"):
        options.gradientAccumulation(4)
    with pytest.raises(AssertionError, match="Invalid option no_such"):
        options("no_such")
    with pytest.raises(AssertionError, match="Invalid option no_such"):
        options.set(no_such=1)


# ---------------------------------------------------------------------- setters
SETTERS: list[tuple[Callable[[Options], Any], str, Any]] = [
    (lambda o: o.deviceIterations(5), "device_iterations", 5),
    (lambda o: o.replicationFactor(4), "replication_factor", 4),
    (lambda o: o.outputMode(poptorch.OutputMode.All), "output_mode", poptorch.OutputMode.All),
    (lambda o: o.anchorMode(poptorch.AnchorMode.Sum), "output_mode", 3),
    (lambda o: o.outputMode(poptorch.OutputMode.EveryN, 3), "output_return_period", 3),
    (lambda o: o.broadcastBuffers(False), "broadcast_buffers", False),
    (lambda o: o.autoRoundNumIPUs(), "auto_round_num_ipus", True),
    (lambda o: o.useIpuModel(True), "use_model", True),
    (lambda o: o.useIpuId(3), "ipu_id", 3),
    (lambda o: o.useOfflineIpuTarget(), "ipu_version", 2),
    (lambda o: o.useOfflineIpuTarget(), "connection_type", poptorch.ConnectionType.Never),
    (lambda o: o.connectionType(poptorch.ConnectionType.OnDemand), "connection_type", 1),
    (lambda o: o.syncPattern(poptorch.SyncPattern.SinglePipeline), "sync_pattern", 1),
    (lambda o: o.modelName("mine"), "model_name", "mine"),
    (lambda o: o.logDir(Path("logs")), "log_dir", "logs"),
]


@pytest.mark.parametrize(("call", "name", "value"), SETTERS)
def test_setter_stores_its_value_and_returns_the_options(call: Callable[[Options], Any], name: str, value: Any) -> None:
    options = Options()
    assert call(options) is options
    assert options(name) == getattr(options, name) == value


POPART_SETTERS: list[tuple[Callable[[Options], Any], dict[str, Any]]] = [
    (lambda o: o.enableSyntheticData(True), {"syntheticDataMode": 2}),
    (lambda o: o.enableSyntheticData(False), {"syntheticDataMode": 0}),
    (lambda o: o.enableStableNorm(True), {"enableStableNorm": True}),
    (lambda o: o.logCycleCount(True), {"instrumentWithHardwareCycleCounter": True}),
    (lambda o: o.enableExecutableCaching("/c"), {"cachePath": "/c", "enableEngineCaching": True}),
    (lambda o: o.enableExecutableCaching(None), {"enableEngineCaching": False}),
    (lambda o: o.updatableNamedBuffers(["b"]), {"updatableNamedBuffers": ["b"]}),
    (lambda o: o.Training.setAutomaticLossScaling(True), {"automaticLossScalingSettings.enabled": True}),
    (lambda o: o.Precision.enableStochasticRounding(True), {"enableStochasticRounding": True}),
    (lambda o: o.Precision.enableFloatingPointExceptions(True), {"enableFloatingPointChecks": True}),
    (
        lambda o: o.Precision.setPartialsType(torch.half),
        {"partialsTypeMatMuls": "half", "convolutionOptions": {"partialsType": "half"}},
    ),
    (lambda o: o._Popart.set("autoRecomputation", 3), {"autoRecomputation": 3}),
    (lambda o: o._Popart.setEngineOptions({"a": "b"}), {"engineOptions": {"a": "b"}}),
    (lambda o: o._Popart.setPatterns({"TiedGather": True}), {"patterns": {"TiedGather": True}, "patterns_level": 2}),
]


@pytest.mark.parametrize(("call", "expected"), POPART_SETTERS)
def test_setter_reaches_the_options_of_the_graph_compiler(call: Callable[[Options], Any], expected: Any) -> None:
    options = Options()
    result = call(options)
    assert isinstance(result, OptionsDict)  # so that calls can be chained
    assert {name: options._Popart.options[name] for name in expected} == expected


def test_attribute_write_is_a_setter_with_the_same_check() -> None:
    options = Options()
    options.replication_factor = 4
    assert options.replication_factor == 4
    with pytest.raises(AssertionError, match="Unexpected type <class 'str'> for option replication_factor"):
        options.replication_factor = "4"


REFUSALS: list[tuple[Callable[[Options], Any], type[Exception], str]] = [
    (lambda o: o.deviceIterations("2"), AssertionError, "Unexpected type"),
    (lambda o: o.deviceIterations(2.0), AssertionError, "Unexpected type"),
    (lambda o: o.logDir(5), AssertionError, "Unexpected type"),
    (lambda o: o.deviceIterations(0), AssertionError, "Unexpected value 0 .* at least 1"),
    (lambda o: o.replicationFactor(0), AssertionError, "Unexpected value 0 .* at least 1"),
    (lambda o: o.Training.gradientAccumulation(-3), AssertionError, "Unexpected value -3 .* at least 1"),
    (lambda o: o.outputMode(2), AssertionError, "takes a poptorch.OutputMode"),
    (
        lambda o: o.outputMode(poptorch.OutputMode.EveryN), AssertionError,
        "EveryN anchor must have output_return_period",
    ),
    (lambda o: o.outputMode(poptorch.OutputMode.EveryN, 0), AssertionError, "EveryN anchor must have"),
    (lambda o: o.setExecutionStrategy("pipelined"), AssertionError, "takes an execution strategy"),
    (lambda o: o.randomSeed("42"), AssertionError, "randomSeed takes an int"),
    (lambda o: o.setAvailableMemoryProportion({"0": 0.1}), AssertionError, "'IPU0'"),
    (lambda o: o.useIpuId("1"), AssertionError, "useIpuId takes an int"),
    (lambda o: o.connectionType(0), AssertionError, "poptorch.ConnectionType"),
    (lambda o: o.syncPattern(0), AssertionError, "poptorch.SyncPattern"),
    (lambda o: o.Training.gradientAccumulation("4"), AssertionError, "Unexpected type"),
    (
        lambda o: o.Training.accumulationAndReplicationReductionType(poptorch.ReductionType.NoReduction), ValueError,
        "must be set to poptorch.ReductionType.Mean or poptorch.ReductionType.Sum",
    ),
    (
        lambda o: o.Training.accumulationAndReplicationReductionType("mean"), ValueError,
        "must be set to poptorch.ReductionType.Mean or poptorch.ReductionType.Sum",
    ),
    (lambda o: o.Precision.setPartialsType(torch.int32), ValueError, "torch.float or torch.half"),
    (lambda o: o.Precision.enableFloatingPointExceptions(1), AssertionError, "bool"),
    (lambda o: o.Precision.runningStatisticsAlwaysFloat(1), ValueError, "bool"),
    (lambda o: o.Jit.traceModel(True), ValueError, r"options.Jit.traceModel\(True\) is no longer supported"),
    (lambda o: o.TensorLocations.numIOTiles(33), AssertionError, "must be an even number between 32 and 192."),
    (lambda o: setattr(o.TensorLocations, "numIOTiles", 33), AssertionError, "must be an even number between"),
    (lambda o: o.TensorLocations.numIOTiles(30), AssertionError, "must be an even number between 32 and 192."),
    (lambda o: o.TensorLocations.numIOTiles(194), AssertionError, "must be an even number between 32 and 192."),
    (lambda o: o.TensorLocations.setOptimizerLocation(True), AssertionError, "Unexpected type"),
    (lambda o: o.inputReplicaGrouping(2, poptorch.CommGroupType.Consecutive), ValueError, "must be a factor"),
    (lambda o: o.inputReplicaGrouping(1, poptorch.CommGroupType.All), ValueError, "CommGroupType.All"),
]


@pytest.mark.parametrize(("call", "kind", "text"), REFUSALS)
def test_refused_value_leaves_the_options_as_they_were(
    call: Callable[[Options], Any], kind: type[Exception], text: str
) -> None:
    options = Options()
    before = repr(options)
    with pytest.raises(kind, match=text):
        call(options)
    assert repr(options) == before


def test_input_groups_divide_the_replicas() -> None:
    options = Options().replicationFactor(4).inputReplicaGrouping(2, poptorch.CommGroupType.Orthogonal)
    assert (options.input_group_size, options.input_cgt) == (2, poptorch.CommGroupType.Orthogonal)
    options.inputReplicaGrouping(4, poptorch.CommGroupType.NoGrouping)
    assert (options.input_group_size, options.input_cgt) == (1, poptorch.CommGroupType.Consecutive)
    with pytest.raises(ValueError, match=r"\(3\) must be a factor of the replication factor \(4\)"):
        options.inputReplicaGrouping(3, poptorch.CommGroupType.Consecutive)


def test_random_seed_seeds_the_host_at_once() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(7)
        expected = torch.rand(3)
        torch.manual_seed(0)
        options = Options().randomSeed(7)
        assert torch.equal(torch.rand(3), expected)
    assert options.random_seed == 7


def test_memory_proportions_are_by_ipu_number_and_the_setter_returns_nothing() -> None:
    options = Options()
    assert options.setAvailableMemoryProportion({"IPU0": 0.6, "IPU12": 0.1}) is None
    assert options.available_memory_proportion == {0: 0.6, 12: 0.1}


def test_anchor_takes_the_mode_of_the_outputs_unless_it_has_its_own() -> None:
    options = Options().outputMode(poptorch.OutputMode.EveryN, 2)
    assert options.anchorTensor("a", "A") is None
    options.anchorTensor("b", "B", poptorch.OutputMode.All, 5)
    options.anchorTensor("c", "C", poptorch.OutputMode.EveryN, 5)
    assert options.anchored_tensors == {"a": ["A", 1, 2], "b": ["B", 2, 1], "c": ["C", 1, 5]}
    with pytest.raises(AssertionError, match=r"anchorTensor takes a poptorch\.OutputMode, not 3"):
        options.anchorTensor("d", "D", 3)
    for period in (0, -1, None):
        with pytest.raises(AssertionError, match="EveryN anchor must have output_return_period set to a positive"):
            options.anchorTensor("d", "D", poptorch.OutputMode.EveryN, period)
    assert "d" not in options.anchored_tensors


def test_output_mode_is_open_until_chosen() -> None:
    options = Options()
    assert options.defaultOutputMode()
    assert options.defaultAnchorMode()
    assert not options.outputMode(poptorch.OutputMode.Final).defaultOutputMode()


def test_tensor_locations_hold_their_settings() -> None:
    settings = (
        poptorch.TensorLocationSettings().useOnChipStorage(False).useReplicatedTensorSharding()
        .minElementsForOffChip(4).minElementsForReplicatedTensorSharding(8).useIOTilesToLoad().useIOTilesToStore(False)
    )
    options = Options()
    options.TensorLocations.setOptimizerLocation(settings).numIOTiles(32)
    locations = options.TensorLocations.toDict()
    assert locations["location_optimizer"] == {
        "onChip": False, "useReplicatedTensorSharding": True, "minElementsForOffChip": 4,
        "minElementsForReplicatedTensorSharding": 8, "useIOTilesToLoad": True, "useIOTilesToStore": False,
    }
    assert locations["location_weight"] == {}
    assert locations["numIOTiles"] == 32
    options.TensorLocations.numIOTiles = 64
    assert options.TensorLocations.toDict()["numIOTiles"] == 64
    assert "onChip" not in settings.useOnChipStorage(None).toDict()


@pytest.mark.parametrize("name", ["useOnChipStorage", "useReplicatedTensorSharding", "minElementsForOffChip",
                                  "minElementsForReplicatedTensorSharding", "useIOTilesToLoad", "useIOTilesToStore"])
def test_tensor_locations_check_types(name: str) -> None:
    with pytest.raises(AssertionError, match=name):
        getattr(poptorch.TensorLocationSettings(), name)("x")


def test_deprecated_settings_only_warn(caplog: pytest.LogCaptureFixture) -> None:
    options = Options()
    before = repr(options)
    options.Precision.halfFloatCasting(poptorch.HalfFloatCastingBehavior.Default)
    options.Precision.runningStatisticsAlwaysFloat(True)
    options.Jit.traceModel(False)
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 3
    assert repr(options) == before


def test_profiling_merges_engine_options_and_the_environment_wins(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("POPLAR_ENGINE_OPTIONS", raising=False)
    options = Options()
    options._Popart.setEngineOptions({"target.x": "1"})
    options.enableProfiling("there")
    assert options._Popart.options["engineOptions"] == {
        "target.x": "1", "debug.allowOutOfMemory": "true", "autoReport.directory": "there", "autoReport.all": "true",
    }
    assert not caplog.records
    monkeypatch.setenv("POPLAR_ENGINE_OPTIONS", '{"autoReport.directory": "elsewhere"}')
    assert Options().enableProfiling()._Popart.options["engineOptions"]["autoReport.directory"] == "elsewhere"
    assert "autoReport.directory" in caplog.text


# ---------------------------------------------------------------------- environment
def test_processes_are_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "3")
    monkeypatch.setenv("SIZE", "8")
    distributed = Options().Distributed
    assert (distributed.processId, distributed.numProcesses) == (3, 4)
    distributed.setEnvVarNames("SIZE", "RANK_THAT_IS_NOT_SET")
    assert (distributed.processId, distributed.numProcesses) == (0, 8)
    distributed.configureProcessId(1, 2)
    assert (distributed.processId, distributed.numProcesses) == (1, 2)
    distributed.disable()
    assert (distributed.processId, distributed.numProcesses) == (0, 1)


def test_environment_holds_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POPTORCH_CACHE_DIR", "/cache")
    monkeypatch.setenv("POPTORCH_DEFAULT_OPTIONS", '{"deviceIterations": 7, "enableExecutableCaching": "/other"}')
    options = Options()
    assert options.device_iterations == 7
    assert options._Popart.options["cachePath"] == "/other"


# ---------------------------------------------------------------------- frozen, copied, printed
FROZEN: list[Callable[[Options], Any]] = [
    *(call for call, _, _ in SETTERS),
    *(call for call, _ in POPART_SETTERS),
    lambda o: o.setAvailableMemoryProportion({"IPU0": 0.5}),
    lambda o: o.anchorTensor("a", "b"),
    lambda o: o.setExecutionStrategy(poptorch.ShardedExecution()),
    lambda o: o.randomSeed(3),
    lambda o: o.showCompilationProgressBar(False),
    lambda o: o.disableModuleNamescope(),
    lambda o: o.relaxOptimizerAttributesChecks(),
    lambda o: o.sourceLocationExcludes(["x"]),
    lambda o: o.appendToLocationExcludes("x"),
    lambda o: o.maxRepeatLogs(1),
    lambda o: o.from_json("{}"),
    lambda o: o.loadFromFile("no-such-file"),
    lambda o: o.Training.gradientAccumulation(4),
    lambda o: o.Distributed.disable(),
    lambda o: o.TensorLocations.numIOTiles(32),
    lambda o: o.deleteIfExists("log_dir"),
    lambda o: o.createOrSet(new=3),
]


@pytest.mark.parametrize("call", FROZEN)
def test_frozen_options_cannot_be_changed(call: Callable[[Options], Any]) -> None:
    options = Options()
    options._freeze()
    before, state = repr(options), torch.get_rng_state()
    with pytest.raises(AttributeError, match="Can't modify frozen Options"):
        call(options)
    assert repr(options) == before
    assert torch.equal(torch.get_rng_state(), state)


def test_frozen_options_cannot_be_changed_by_attribute() -> None:
    options = Options()
    options._freeze()
    with pytest.raises(AttributeError, match="Can't modify frozen Options"):
        options.device_iterations = 3
    options._unfreeze()
    options.device_iterations = 3
    assert options.device_iterations == 3


@pytest.mark.parametrize("duplicate", [Options.clone, copy.deepcopy])
def test_copy_is_equal_apart_and_not_frozen(duplicate: Callable[[Options], Options]) -> None:
    options = Options().deviceIterations(3)
    options._Popart.set("autoRecomputation", 1)
    options.setExecutionStrategy(poptorch.ShardedExecution(poptorch.AutoStage.AutoIncrement))
    options._freeze()
    twin = duplicate(options)
    assert repr(twin) == repr(options)
    before = repr(options)
    twin.deviceIterations(4).Training.gradientAccumulation(2)
    twin.Precision.setPartialsType(torch.half)
    twin.anchorTensor("a", "b")
    assert repr(options) == before
    assert twin.Training._popart is twin.Precision._popart is twin._Popart
    assert twin._Popart.options["partialsTypeMatMuls"] == "half"


def test_options_can_be_pickled() -> None:
    options = Options().deviceIterations(3)
    assert repr(pickle.loads(pickle.dumps(options))) == repr(options)


def test_text_names_every_setting_and_no_address() -> None:
    options = Options().replicationFactor(4)
    text = repr(options)
    assert text.startswith("Options(")
    assert "replication_factor=4" in text
    assert "gradient_accumulation=1" in text
    assert not re.search(r"0x[0-9a-f]{6}", text)
    assert text == repr(Options().replicationFactor(4)) != repr(Options())


def test_dictionary_holds_the_groups_too() -> None:
    options = Options().outputMode(poptorch.OutputMode.All).replicationFactor(2)
    options.Training.gradientAccumulation(4)
    options._Popart.set("autoRecomputation", 1)
    merged = options.toDict()
    assert merged["replication_factor"] == 2
    assert merged["gradient_accumulation"] == 4
    assert merged["autoRecomputation"] == 1
    assert merged["num_distributed_processes"] == 1
    assert merged["execution_mode"] == 0
    assert options.Training.toDict()["gradient_accumulation"] == 4


def test_dictionary_needs_an_output_mode() -> None:
    with pytest.raises(AssertionError, match="An output mode must be picked"):
        Options().toDict()


def test_dictionary_refuses_one_name_in_two_groups() -> None:
    options = Options().outputMode(poptorch.OutputMode.All)
    options._Popart.set("device_iterations", 3)
    with pytest.raises(AssertionError, match="device_iterations"):
        options.toDict()


def test_groups_are_read_by_key_and_places_too() -> None:
    options = Options()
    settings = poptorch.TensorLocationSettings().useOnChipStorage(False).minElementsForOffChip(4)
    options.TensorLocations.setWeightLocation(settings)
    twin = copy.deepcopy(options)
    twin.TensorLocations.setWeightLocation(poptorch.TensorLocationSettings().useOnChipStorage(True))
    assert options.TensorLocations["location_weight"]["onChip"] is False
    assert options.TensorLocations["location_weight"]["minElementsForOffChip"] == 4
    assert twin.TensorLocations["location_weight"]["onChip"] is True
    assert options.Training["gradient_accumulation"] == options["replication_factor"] == 1
    assert "onChip" not in options.TensorLocations["location_activation"]
    with pytest.raises(KeyError, match="location_wheight: _TensorLocationOptions has"):
        options.TensorLocations["location_wheight"]


@pytest.mark.parametrize("group", ["Distributed", "Training", "Precision", "TensorLocations", "Jit", "_Popart"])
def test_the_class_of_a_group_may_be_a_subclass_of_a_program(group: str) -> None:
    options = Options()
    held = getattr(options, group)
    held.__class__ = type("Mine", (type(held),), {"mine": lambda self: 7})
    for one in (options, copy.deepcopy(options), options.clone()):
        assert getattr(one, group).mine() == 7
    options._freeze()
    assert getattr(copy.deepcopy(options), group).mine() == 7
