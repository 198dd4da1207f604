"""What is passed on to compiler and engine: names, values, the log of them, environment variables and reports."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torchipu.poptorch.popart as popart
from tests.poptorch.models import Classifier, batch, options, sgd
from torchipu import poptorch
from torchipu.poptorch.executor.translation import core_options
from torchipu.poptorch.options import session_options
from torchipu.report.database import read_database
from torchipu.target import TARGETS

X = batch(4)[0]


def run(chosen: poptorch.Options, model: Any = None) -> Any:
    return poptorch.inferenceModel(model or Classifier(), chosen)(X)


# --------------------------------------------------------------------------- _Popart
@pytest.mark.parametrize(("name", "words"), [
    ("enableOutlinings", "; did you mean 'enableOutlining'?"),
    ("torchipu.statistic", "; did you mean 'torchipu.statistics'?"),
    ("zzz", ": it is kept, and changes nothing"), ("ofTheFuture.depth", ": it is kept, and changes nothing"),
    ("autodiffSettings.", "; did you mean '"),
    ("enableOutlining.depth", ": enableOutlining has no members, so that nothing changes. Set enableOutlining itself"),
    ("codelets", ": codelets in C++ (vertex sources, or .gp files of popc) are out of scope. Give the ops that use it "
                 "in torch, by poptorch.registerCustomOp"),
])
def test_unknown_names_are_kept_and_warned_of_once(
    name: str, words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session_options, "_WARNED", set())
    for _ in range(2):
        chosen = options()
        chosen._Popart.set(name, 3)
        run(chosen)
        assert chosen._Popart.options[name] == 3
    found = re.findall(f"Unknown option {re.escape(name)} of _Popart(.*)", capsys.readouterr().err)
    assert len(found) == 1
    assert words in found[0]


@pytest.mark.parametrize(("name", "value"), [
    ("hardwareInstrumentations", {0, 1}), ("dotChecks", [0, 1]), ("reportOptions", {"a": "b"}),
    ("timeLimitScheduler", 5.0), ("accumulateOuterFragmentSettings.excludedVirtualGraphs", ["0"]),
    ("accumulateOuterFragmentSettings.schedule", popart.AccumulateOuterFragmentSchedule.OverlapMemoryOptimized),
    ("saveInitializersToFile", "weights.onnx"), ("enableOutlining", True),
    ("replicatedCollectivesSettings.mergeAllReduceCollectives", True), ("hostAllReduce", False),
    ("batchSerializationSettings.batchSchedule", 1), ("torchipu.host_times", False),
])
def test_known_names_are_taken_silently(name: str, value: Any, capsys: pytest.CaptureFixture[str]) -> None:
    chosen = options().showCompilationProgressBar(False)
    chosen._Popart.set(name, value)
    run(chosen)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("given", "depth"), [
    ({}, 1), ({"defaultPrefetchBufferingDepth": 3}, 3), ({"defaultBufferingDepth": 2}, 2),
    ({"enablePrefetchDatastreams": False, "defaultBufferingDepth": 2}, 0),
    ({"rearrangeStreamsOnHost": True, "defaultBufferingDepth": 2}, 1),
])
def test_the_depth_of_buffers_reaches_the_core(given: dict[str, Any], depth: int) -> None:
    chosen = options().outputMode(poptorch.OutputMode.All)
    for name, value in given.items():
        chosen._Popart.set(name, value)
    assert core_options(chosen, None).prefetch_depth == depth


@pytest.mark.parametrize("given", [True, False])
def test_code_of_parts_that_are_alike_is_shared_unless_it_is_said_not_to(given: bool) -> None:
    chosen = options().outputMode(poptorch.OutputMode.All)
    assert core_options(chosen, None).outlining
    chosen._Popart.set("enableOutlining", given)
    assert core_options(chosen, None).outlining == given


def test_codelets_of_popc_are_warned_of_once(capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        chosen = options()
        chosen._Popart.set("customCodelets", ["cube.gp"])
        run(chosen)
    found = capsys.readouterr().err
    assert found.count("customCodelets of _Popart: ['cube.gp'] is not loaded") == 1
    assert "Give the ops that use it in torch, by poptorch.registerCustomOp" in found


def test_a_value_that_is_no_plain_one_is_refused_when_compiling() -> None:
    chosen = options()
    chosen._Popart.set("dotChecks", object())
    with pytest.raises(poptorch.Error, match="Unsupported value of type object for the option dotChecks of _Popart"):
        run(chosen)


@pytest.mark.parametrize(("name", "value"), [
    ("enableOutlining", "yes"), ("disableGradAccumulationTensorStreams", 0.5), ("enableStableNorm", ["a"]),
])
def test_what_switches_something_on_or_off_takes_a_bool(name: str, value: object) -> None:
    chosen = options()
    chosen._Popart.set(name, value)
    with pytest.raises(poptorch.Error, match=f"Wrong value .* for the option {name} of _Popart: it takes a bool"):
        run(chosen)
    chosen = options()
    chosen._Popart.set(name, True)
    run(chosen)


def test_the_log_lists_all_options(debug_log: Callable[[], str], tmp_path: Path) -> None:
    chosen = options(iterations=2).enableExecutableCaching(tmp_path)
    chosen._Popart.setPatterns({"PadSum": False}, 1)
    run(chosen)
    lines = debug_log()
    for words in ("set enableEngineCaching to value true", "set device_iterations to value 2",
                  "set patterns[PadSum] to value false", "set patterns_level to value 1"):
        assert words in lines


# --------------------------------------------------------------------------- the machine
@pytest.mark.parametrize(("version", "tiles"), [("ipu1", 1216), ("ipu2", 1472), ("ipu21", 1472)])
def test_the_environment_names_the_model_of_the_machine(
    version: str, tiles: int, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("POPTORCH_IPU_MODEL", "1")
    monkeypatch.setenv("POPTORCH_IPU_MODEL_VERSION", version)
    step = poptorch.inferenceModel(Classifier())
    step.compile(X)
    assert step._executable.target.num_tiles == tiles


def test_an_unknown_machine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POPTORCH_IPU_MODEL", "1")
    monkeypatch.setenv("POPTORCH_IPU_MODEL_VERSION", "ipu7")
    with pytest.raises(poptorch.Error, match=r"Invalid IPU model version 'ipu7'. Known versions: ipu1, ipu2, ipu21"):
        run(options())
    monkeypatch.setenv("POPTORCH_IPU_MODEL", "0")
    run(options())


@pytest.mark.parametrize(("given", "name"), [
    ("bow-pod16", "bow-pod16"), ("bow,num_tiles=736", "bow,num_tiles=736"),
    (TARGETS["mk1"].replaced(num_tiles=8), "mk1,num_tiles=8"),
])
def test_a_machine_is_named_as_in_torchipu(given: Any, name: str) -> None:
    chosen = options()
    chosen._Popart.set("torchipu.target", given)
    chosen.useOfflineIpuTarget()
    assert chosen._Popart.options["torchipu.target"] == name
    assert chosen.clone()._Popart.options["torchipu.target"] == name
    step = poptorch.inferenceModel(Classifier(), chosen)
    step.compile(X)
    assert step._executable.target.name == name


def test_a_file_of_a_machine_is_read_when_the_option_is_set(tmp_path: Path) -> None:
    path = tmp_path / "machine.toml"
    path.write_text('base = "mk2"\nnum_tiles = 8\n', encoding="utf-8")
    chosen = options()
    chosen._Popart.set("torchipu.target", str(path))
    path.write_text('base = "mk2"\ntiles = 8\n', encoding="utf-8")
    assert chosen._Popart.options["torchipu.target"] == "mk2,num_tiles=8"
    with pytest.raises(poptorch.Error, match=r"torchipu.target: target .*: unknown key 'tiles'; did you mean 'num_ti"):
        chosen._Popart.set("torchipu.target", str(path))
    with pytest.raises(poptorch.Error, match=r"torchipu.target: unknown target 'pod17'; did you mean 'pod1"):
        chosen._Popart.set("torchipu.target", "pod17")
    with pytest.raises(poptorch.Error, match=r"torchipu.target: a target is a name, the path .*, got 2 .int."):
        chosen._Popart.set("torchipu.target", 2)


def test_a_process_may_have_all_ipus_of_a_system_and_no_more() -> None:
    x = torch.zeros(128, *X.shape[1:])
    chosen = options()
    chosen._Popart.set("torchipu.target", "pod128")
    step = poptorch.inferenceModel(Classifier(), chosen.replicationFactor(128))
    step.compile(x)
    assert step._executable.target.name == "pod128"
    fewer = options()
    fewer._Popart.set("torchipu.target", "pod16")
    with pytest.raises(poptorch.Error, match="32 replicas of the model need 32 IPUs at least, but pod16 has 16"):
        poptorch.inferenceModel(Classifier(), fewer.replicationFactor(32)).compile(x)
    more = options()
    more._Popart.set("torchipu.target", "pod128")
    with pytest.raises(poptorch.Error, match=r"Too many IPUs requested \(256\). Experiments that need more than 128 "):
        poptorch.inferenceModel(Classifier(), more.replicationFactor(256)).compile(torch.zeros(256, *X.shape[1:]))


def test_a_machine_of_its_own_has_an_entry_of_its_own_in_the_cache(tmp_path: Path) -> None:
    for target in ("mk2", "mk2,num_tiles=8", "mk2,num_tiles=9", "mk2,num_tiles=8"):
        chosen = options().enableExecutableCaching(str(tmp_path))
        chosen._Popart.set("torchipu.target", target)
        run(chosen)
    assert len(list(tmp_path.glob("*.executable"))) == 3


@pytest.mark.parametrize(("change", "words"), [
    (lambda o: o.useOfflineIpuTarget().useIpuModel(True), "useOfflineIpuTarget is not supported for the IPU model"),
    (lambda o: o.connectionType(poptorch.ConnectionType.Never).useIpuModel(True),
     "ConnectionType.Never is not supported for the IPU model"),
    (lambda o: o.useOfflineIpuTarget().useIpuId(3), "useIpuId is not supported by useOfflineIpuTarget"),
    (lambda o: o.logCycleCount(True).useOfflineIpuTarget(), "logCycleCount is not supported by useOfflineIpuTarget"),
])
def test_options_that_exclude_each_other_are_refused(change: Any, words: str) -> None:
    with pytest.raises(poptorch.Error, match=words):
        poptorch.inferenceModel(Classifier(), change(options())).compile(X)


# --------------------------------------------------------------------------- synthetic data
def test_synthetic_data_takes_no_input_and_has_no_times() -> None:
    class Doubled(nn.Module):
        def forward(self, x: torch.Tensor, index: torch.Tensor) -> Any:
            x += 1
            return x, index

    x, index = torch.full((64,), 100.0), torch.arange(3)
    step = poptorch.inferenceModel(Doubled(), options().enableSyntheticData(True))
    values, places = step(x, index)
    assert values.abs().max() < 20
    assert values.std() > 0.5
    assert places.tolist() == [0, 0, 0]
    assert torch.equal(x, torch.full((64,), 100.0))
    assert step.getLatency() == (0.0, 0.0, 0.0)
    assert step.getPerfCounters()["input"] == [[]]


# --------------------------------------------------------------------------- reports
def test_profiles_go_to_the_folder_of_the_model(tmp_path: Path) -> None:
    run(options().enableProfiling(tmp_path))
    model = Classifier()
    poptorch.trainingModel(model, options().modelName("mine").enableProfiling(tmp_path), sgd(model)).compile(*batch(4))
    assert sorted(path.parent.name for path in tmp_path.glob("*/profile.pop")) == ["inference", "mine"]
    profile = read_database(tmp_path / "mine" / "profile.pop")
    assert profile.figure("is_training") is True
    assert profile.figure("cycles_per_update") > 0


def test_the_environment_asks_for_a_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = {"autoReport.all": "true", "autoReport.directory": str(tmp_path / "of the environment")}
    monkeypatch.setenv("POPLAR_ENGINE_OPTIONS", json.dumps(wanted))
    chosen = options()
    chosen._Popart.setEngineOptions({"autoReport.directory": str(tmp_path / "of the program")})
    run(chosen)
    assert (tmp_path / "of the environment" / "inference" / "profile.pop").exists()
    assert not (tmp_path / "of the program").exists()
    monkeypatch.setenv("POPLAR_ENGINE_OPTIONS", '{"autoReport.all": "false"}')
    run(options().enableProfiling(tmp_path / "no"))
    assert not (tmp_path / "no").exists()


# --------------------------------------------------------------------------- names
def test_names_of_ops_lose_the_path_of_modules() -> None:
    def names(chosen: poptorch.Options) -> list[str]:
        step = poptorch.inferenceModel(Classifier(), chosen)
        step.compile(X)
        return [op["name"] for op in json.loads(step._debugGetPopartIR())["maingraph"]]

    assert any(name.startswith("body/") for name in names(options()))
    assert not any("body" in name for name in names(options().disableModuleNamescope()))


def test_buffers_to_update_must_exist() -> None:
    with pytest.raises(poptorch.Error, match=r"updatableNamedBuffers names count, which the model does not have. Its "):
        run(options().updatableNamedBuffers(["count"]))
