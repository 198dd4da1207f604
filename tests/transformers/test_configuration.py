"""Facts of `IPUConfig`: values, files, layers by IPU, and the options that it stands for."""

from __future__ import annotations

import copy
import json
import logging
import pickle
from pathlib import Path

import poptorch
import pytest
import torch

from torchipu.errors import OptionsError
from torchipu.transformers import IPUConfig
from torchipu.transformers.layers import share_out

BERT_BASE = {
    "embedding_serialization_factor": 2, "enable_half_first_order_momentum": True, "enable_half_partials": True,
    "executable_cache_dir": "./exe_cache", "gradient_accumulation_steps": 512, "inference_device_iterations": 5,
    "inference_replication_factor": {"default": 4}, "ipus_per_replica": 4, "layers_per_ipu": [3, 3, 3, 3],
    "matmul_proportion": [0.22, 0.22, 0.22, 0.22], "optimizer_state_offchip": True, "optimum_version": "1.0.0",
    "output_mode": "final", "profile_dir": "", "recompute_checkpoint_every_layer": True,
    "replicated_tensor_sharding": True, "seed": 42, "transformers_version": "4.20.1", "use_popdist": False,
    "replication_factor": {"default": 1, "pod4": 1, "pod8": 2, "pod16": 4, "pod64": 16},
}
"""A file of optimum-graphcore's time, with the keys that it had."""


@pytest.mark.parametrize(("layers_per_ipu", "num_layers", "ipus"), [
    ([3, 1], 4, (0, 0, 0, 1)),
    ([-1, -1], 4, (0, 0, 1, 1)),
    ([-1, -1, -1], 4, (0, 1, 2, 2)),
    ([1, -1, -1], 6, (0, 1, 1, 2, 2, 2)),
    ([0, -1], 3, (1, 1, 1)),
    ([2, -1], 2, (0, 0)),
])
def test_wildcards_share_what_the_others_leave(
    layers_per_ipu: list[int], num_layers: int, ipus: tuple[int, ...]
) -> None:
    assert share_out(layers_per_ipu, num_layers) == ipus


@pytest.mark.parametrize(("layers_per_ipu", "placed"), [([3, 3], 6), ([1, 1], 2), ([5, -1], 5)])
def test_numbers_of_another_model_are_refused(layers_per_ipu: list[int], placed: int) -> None:
    with pytest.raises(OptionsError) as refusal:
        share_out(layers_per_ipu, 4)
    assert refusal.value.message == f"layers_per_ipu={layers_per_ipu} places {placed} layers, and the model has 4"


def test_one_wildcard_is_for_all_ipus_of_a_replica() -> None:
    config = IPUConfig(layers_per_ipu=[-1], ipus_per_replica=4, inference_ipus_per_replica=2)
    assert config.ipu_by_layer(8) == (0, 0, 1, 1, 2, 2, 3, 3)
    assert config.ipu_by_layer(4, for_inference=True) == (0, 0, 1, 1)


def test_inference_takes_the_layers_of_training_unless_it_has_its_own() -> None:
    config = IPUConfig(layers_per_ipu=[1, 3])
    assert config.ipu_by_layer(4, for_inference=True) == (0, 1, 1, 1)
    assert IPUConfig(layers_per_ipu=[1, 3], inference_layers_per_ipu=[4]).num_ipus(for_inference=True) == 1
    other = IPUConfig(layers_per_ipu=[1, 3], inference_ipus_per_replica=1)
    assert other.ipu_by_layer(4, for_inference=True) == (0, 0, 0, 0)


def test_file_of_optimum_graphcore_is_understood(caplog: pytest.LogCaptureFixture) -> None:
    config = IPUConfig(**BERT_BASE)
    assert caplog.records == []
    assert (config.replication_factor, config.inference_replication_factor) == (1, 4)
    assert config.for_pod_type("pod16").replication_factor == 4
    assert config.for_pod_type("pod16").inference_replication_factor == 4
    assert config.layers_per_ipu == (3, 3, 3, 3)
    assert config.update(seed=7, device_iterations=None).seed == 7
    written = json.loads(config.to_json_string())
    assert {name: written[name] for name in BERT_BASE} == BERT_BASE


def test_machine_without_a_value_is_refused() -> None:
    config = IPUConfig(replication_factor={"pod4": 2})
    assert config.replication_factor == 1
    assert config.for_pod_type("pod4").replication_factor == 2
    with pytest.raises(OptionsError, match="has no value for 'pod16'"):
        config.for_pod_type("pod16")


def test_older_names_mean_the_same() -> None:
    assert IPUConfig(random_seed=3, gradient_accumulation=4).seed == 3
    assert IPUConfig(gradient_accumulation=4).gradient_accumulation_steps == 4


def test_unknown_name_is_kept_and_said(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "torchipu.transformers"):
        config = IPUConfig(layers_per_ipus=[2, 2])
    (record,) = caplog.records
    assert record.getMessage() == (
        "IPUConfig: 'layers_per_ipus' is unknown and has no effect; did you mean 'layers_per_ipu'?"
    )
    assert config.to_dict()["layers_per_ipus"] == [2, 2]


BART_IN_0_7 = {
    "auto_loss_scaling": False, "device_iterations": 1, "embedding_serialization_factor": None,
    "enable_half_partials": True, "executable_cache_dir": "", "execute_encoder_on_cpu_for_generation": False,
    "explicit_ir_inference": False, "gradient_accumulation_steps": 64, "inference_device_iterations": 1,
    "inference_embedding_serialization_factor": None, "inference_ipus_per_replica": 4,
    "inference_layers_per_ipu": [6, 0, 6, 0], "inference_matmul_proportion": 0.2,
    "inference_parallelize_kwargs": {}, "inference_projection_serialization_factor": 5,
    "inference_replication_factor": 1, "inference_serialized_embedding_splits_per_ipu": None,
    "inference_serialized_projection_splits_per_ipu": None, "ipus_per_replica": 4, "layers_per_ipu": [4, 4, 2, 2],
    "matmul_proportion": [0.2, 0.2, 0.1, 0.1], "optimizer_state_offchip": True, "optimum_version": "1.6.1",
    "output_mode": "final", "parallelize_kwargs": {}, "projection_serialization_factor": 3,
    "recompute_checkpoint_every_layer": True, "replicated_tensor_sharding": False, "replication_factor": 2,
    "seed": None, "serialized_embedding_splits_per_ipu": None, "serialized_projection_splits_per_ipu": None,
    "transformers_version": "4.29.2",
}
"""All keys that optimum-graphcore 0.7 writes."""


def test_every_key_of_the_last_release_is_taken(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "torchipu.transformers"):
        config = IPUConfig(**BART_IN_0_7)
    assert not caplog.records
    assert (config.projection_parts(), config.projection_parts(for_inference=True)) == (3, 5)
    assert config.ipu_by_layer(12, for_inference=True) == (0,) * 6 + (2,) * 6
    options = config.to_options()
    assert options.Training.gradient_accumulation == 64
    assert options.replication_factor == 2
    written = config.to_dict()
    assert {name: written[name] for name in BART_IN_0_7} == BART_IN_0_7 | {"embedding_serialization_factor": 1}


@pytest.mark.parametrize(("name", "value", "words"), [
    ("serialized_embedding_splits_per_ipu", [3, 1], "use embedding_serialization_factor=4"),
    ("inference_serialized_projection_splits_per_ipu", [2, 0], "use inference_projection_serialization_factor=2"),
    ("eager_execution", True, "eager_execution=True is not for the IPU"),
    ("compile_only", True, "give IPUTrainingArguments.compile_only=True"),
])
def test_what_an_option_would_do_and_cannot_is_refused(name: str, value: object, words: str) -> None:
    with pytest.raises(OptionsError, match=words):
        IPUConfig(**{name: value})
    assert IPUConfig(**{name: None}).to_dict()[name] is None


def test_synthetic_data_reach_the_options() -> None:
    for is_synthetic in (False, True):
        options = IPUConfig(synthetic_data=is_synthetic).to_options()
        assert (options._popart.options.get("syntheticDataMode", 0) != 0) == is_synthetic


@pytest.mark.parametrize(("name", "value", "words"), [
    ("replication_factor", 0, "replication_factor=0"),
    ("gradient_accumulation_steps", 2.5, "gradient_accumulation_steps=2.5"),
    ("layers_per_ipu", [2, -3], "layers_per_ipu"),
    ("layers_per_ipu", [], "layers_per_ipu"),
    ("matmul_proportion", 1.5, "matmul_proportion=1.5"),
    ("output_mode", "finale", "did you mean 'final'"),
    ("optimizer_state_offchip", "yes", "optimizer_state_offchip='yes'"),
    ("executable_cache_dir", 3, "executable_cache_dir=3"),
])
def test_value_out_of_range_is_refused(name: str, value: object, words: str) -> None:
    with pytest.raises(OptionsError, match=words.replace("[", r"\[")):
        IPUConfig(**{name: value})


def test_layers_for_another_number_of_ipus_are_refused() -> None:
    with pytest.raises(OptionsError, match="is for 2 IPUs, and a replica has 4"):
        IPUConfig(layers_per_ipu=[2, 2], ipus_per_replica=4)


def test_saved_configuration_comes_back(tmp_path: Path) -> None:
    config = IPUConfig(layers_per_ipu=[1, -1], replication_factor={"default": 2, "pod16": 8}, seed=1)
    config.save_pretrained(tmp_path / "new")
    assert [file.name for file in (tmp_path / "new").iterdir()] == ["ipu_config.json"]
    again = IPUConfig.from_pretrained(tmp_path / "new", device_iterations=3)
    assert again.to_dict() == config.to_dict() | {"device_iterations": 3}
    assert again.for_pod_type("pod16").replication_factor == 8
    assert IPUConfig.from_pretrained(tmp_path / "new" / "ipu_config.json") == config


def test_missing_and_damaged_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="give a local folder or file; names on the Hugging Face hub are not looked up"):
        IPUConfig.from_pretrained("Graphcore/bert-base-ipu")
    (tmp_path / "ipu_config.json").write_text("{", encoding="utf-8")
    with pytest.raises(OptionsError, match="holds no JSON object"):
        IPUConfig.from_pretrained(tmp_path)
    (tmp_path / "ipu_config.json").write_text("[1]", encoding="utf-8")
    with pytest.raises(OptionsError, match="holds no JSON object"):
        IPUConfig.from_pretrained(tmp_path)


def test_options_of_training_and_inference() -> None:
    config = IPUConfig(**BERT_BASE | {"executable_cache_dir": "", "device_iterations": 2}).for_pod_type("pod8")
    with torch.random.fork_rng(devices=[]):
        training, inference = config.to_options(), config.to_options(for_inference=True)
    assert (training.replication_factor, inference.replication_factor) == (2, 4)
    assert (training.device_iterations, inference.device_iterations) == (2, 5)
    assert training.Training.gradient_accumulation == 512
    assert inference.Training.gradient_accumulation == 1
    assert training.output_mode == poptorch.OutputMode.Final.value
    assert inference.output_mode == poptorch.OutputMode.All.value
    assert training.random_seed == inference.random_seed == 42
    location = training.TensorLocations.location_optimizer
    assert location.toDict() == {"onChip": False, "useReplicatedTensorSharding": True}
    assert training.available_memory_proportion == {0: 0.22, 1: 0.22, 2: 0.22, 3: 0.22}
    assert training._popart("enableStochasticRounding") is True
    assert inference._popart("enableStochasticRounding") is False
    assert training._popart("partialsTypeMatMuls") == "half"


def test_other_options_reach_poptorch(tmp_path: Path) -> None:
    config = IPUConfig(
        enable_half_partials=False, auto_loss_scaling=True, executable_cache_dir=tmp_path, output_mode="sum",
        sharded_execution_for_inference=True, replicated_tensor_sharding=True, matmul_proportion=[0.1, 0.3],
        layers_per_ipu=[1, 1], inference_layers_per_ipu=[2], profile_dir=str(tmp_path),
    )
    training, inference = config.to_options(), config.to_options(for_inference=True)
    assert training._popart("partialsTypeMatMuls") == "float"
    assert training._popart("automaticLossScalingSettings.enabled") is True
    assert training._popart("cachePath") == str(tmp_path)
    assert training.output_mode == poptorch.OutputMode.Sum.value
    assert isinstance(inference._execution_strategy, poptorch.ShardedExecution)
    assert isinstance(training._execution_strategy, poptorch.PipelinedExecution)
    # Of no use with one replica, as optimum-graphcore found too.
    location = training.TensorLocations.location_optimizer
    assert location.toDict() == {"onChip": True, "useReplicatedTensorSharding": False}
    assert inference.available_memory_proportion == {0: 0.1}
    assert not training.exists("random_seed")


def test_options_without_effect_are_read_as_they_were_given() -> None:
    config = IPUConfig(layers_per_ipu=[1, 1], use_popdist=True, of_ours={"a": 1})
    for read in (config, copy.deepcopy(config), pickle.loads(pickle.dumps(config)), config.for_pod_type("pod4")):
        assert (read.use_popdist, read.of_ours) == (True, {"a": 1})
        assert not hasattr(read, "of_nobody")
