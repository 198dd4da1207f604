"""Who is measured: eager PyTorch, Inductor, ONNX Runtime, OpenVINO, and torchipu through its doors."""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

import torchipu
from workloads import Step, Workload

OURS, WITH_UPDATE, WHOLE_STEP = "torchipu", "torchipu-update", "torchipu-step"


class RefusedError(Exception):
    """A contender cannot run a workload; the words say why."""


@dataclass(frozen=True)
class Contender:
    """Someone who runs the workloads.

    Attributes:
        name: In the tables, and for ``--contender``.
        make: Returns its step of a workload on so many threads.
        infers_only: Whether it runs nothing but inference with frozen weights.
        trains_only: Whether it runs nothing but training.
        libraries: What must be installed.
    """

    name: str
    make: Callable[[Workload, int], Step]
    infers_only: bool = False
    trains_only: bool = False
    libraries: tuple[str, ...] = ()

    @property
    def is_installed(self) -> bool:
        """Whether its libraries can be imported."""
        return all(importlib.util.find_spec(library) is not None for library in self.libraries)

    def takes(self, workload: Workload) -> bool:
        """Return whether the workload is of its kind, and it is installed."""
        return self.is_installed and (workload.frozen or not self.infers_only) and (
            workload.training or not self.trains_only
        )


def options_of(workload: Workload, num_threads: int) -> dict[str, Any]:
    """Return the options of torchipu for a workload: nothing but what every contender has as well."""
    return {"host_threads": num_threads, "allow_out_of_memory": True, "frozen_weights": workload.frozen}


def through_torch_compile(workload: Workload, num_threads: int) -> Step:
    """Return the step with the model compiled; loss and optimiser are eager, as for the other contenders."""
    options = options_of(workload, num_threads)
    return workload.step(lambda model: torch.compile(model, backend="ipu", options=options))


def with_compiled_update(workload: Workload, num_threads: int) -> Step:
    """Return the step with model and update compiled, each a program of its own; the loss is eager."""
    options, update_options = options_of(workload, num_threads), {"host_threads": num_threads}
    return workload.step(
        lambda model: torch.compile(model, backend="ipu", options=options),
        lambda update: torch.compile(update, backend="ipu", options=update_options),
    )


class AndLoss(nn.Module):
    """A model and its loss, for a whole training step as one program."""

    def __init__(self, model: nn.Module, workload: Workload) -> None:
        super().__init__()
        self.model = model
        self.loss = workload.loss

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.loss(self.model(inputs), inputs)


def whole_step(
    workload: Workload, num_threads: int, **options: Any
) -> tuple[torchipu.TrainStep | torchipu.InferenceStep, Step]:
    """Return one of torchipu's steps and a call of it."""
    torch.manual_seed(0)
    model = workload.model().train(workload.training)
    inputs = workload.inputs()
    chosen = torchipu.Options(**options_of(workload, num_threads), **options)
    step: torchipu.TrainStep | torchipu.InferenceStep
    if workload.training:
        optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4)
        step = torchipu.TrainStep(AndLoss(model, workload), optimiser, options=chosen)
    else:
        step = torchipu.InferenceStep(model.requires_grad_(False), options=chosen)
    return step, lambda: step(inputs)


def through_inductor(workload: Workload, num_threads: int) -> Step:
    """Return the step with the model compiled by Inductor.

    Dynamo leaves recurrent layers to eager PyTorch unless a backend asks for them, and remembers that of a forward
    whatever backend comes next: torchipu would be timed running eagerly.

    Raises:
        RefusedError: The model has recurrent layers.
    """
    if any(isinstance(module, nn.RNNBase) for module in workload.model().modules()):
        raise RefusedError("inductor: recurrent layers are left to eager PyTorch")
    return workload.step(torch.compile)


def through_onnx_runtime(workload: Workload, num_threads: int) -> Step:
    """Return inference by ONNX Runtime on the model that ``torch.onnx`` exports."""
    import onnxruntime

    torch.manual_seed(0)
    model, inputs = workload.model().eval(), workload.inputs()
    stored = io.BytesIO()
    try:
        with torch.no_grad():
            torch.onnx.export(model, (inputs,), dynamo=True, verbose=False).save(stored)
    except Exception as error:
        raise RefusedError(f"torch.onnx.export: {type(error).__name__}") from error
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = num_threads
    session = onnxruntime.InferenceSession(stored.getvalue(), settings, providers=["CPUExecutionProvider"])
    given = {session.get_inputs()[0].name: inputs.numpy()}
    return lambda: torch.from_numpy(session.run(None, given)[0])


def through_openvino(workload: Workload, num_threads: int) -> Step:
    """Return inference by OpenVINO on the traced model, in float32 and for least latency."""
    import openvino

    torch.manual_seed(0)
    model, inputs = workload.model().eval(), workload.inputs()
    settings = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": num_threads, "INFERENCE_PRECISION_HINT": "f32"}
    try:
        with torch.no_grad():
            converted = openvino.convert_model(model, example_input=inputs)
        for parameter in converted.inputs:
            parameter.get_node().set_partial_shape(openvino.PartialShape(list(inputs.shape)))
        converted.validate_nodes_and_infer_types()
        compiled = openvino.compile_model(converted, "CPU", settings)
    except Exception as error:
        raise RefusedError(f"openvino: {type(error).__name__}") from error
    request, given = compiled.create_infer_request(), [inputs.numpy()]
    return lambda: torch.from_numpy(request.infer(given)[0])


CONTENDERS = {
    contender.name: contender
    for contender in (
        Contender("eager", lambda workload, num_threads: workload.step()),
        Contender("inductor", through_inductor),
        Contender("openvino", through_openvino, infers_only=True, libraries=("openvino",)),
        Contender(
            "onnxruntime", through_onnx_runtime, infers_only=True, libraries=("onnxruntime", "onnx", "onnxscript"),
        ),
        Contender(OURS, through_torch_compile),
        Contender(WITH_UPDATE, with_compiled_update, trains_only=True),
        Contender(WHOLE_STEP, lambda workload, num_threads: whole_step(workload, num_threads)[1]),
    )
}


def first_tensor(result: Any) -> torch.Tensor:
    """Return the first tensor of a result, as ONNX Runtime and OpenVINO order them."""
    if isinstance(result, torch.Tensor):
        return result
    return first_tensor(next(iter(result.values())) if isinstance(result, dict) else result[0])


def refuse_other_values(name: str, result: Any, eager: Any) -> None:
    """Raise RefusedError when a contender computes something else than eager PyTorch does.

    Args:
        name: Of the contender.
        result: Of its step.
        eager: That of eager's step on the same weights and inputs.
    """
    ours, theirs = first_tensor(result).float(), first_tensor(eager).float()
    if ours.shape != theirs.shape:
        raise RefusedError(f"{name} gives {list(ours.shape)}, eager {list(theirs.shape)}")
    error = ((ours - theirs).abs().max() / theirs.abs().max().clamp_min(1e-6)).item()
    if not error < 1e-2:
        raise RefusedError(f"{name} differs from eager by {error:.1g} of the largest value")
