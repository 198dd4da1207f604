"""The name of PopXL's library of layers, which says at its import what to use instead; an installed one comes first."""

from torchipu.alias import refuse

refuse(
    __name__, __file__,
    "popxl_addons: programs of PopXL are out of torchipu's scope. Write the model in torch, of torch.nn's layers, and "
    'run it by torch.compile(model, backend="ipu") or torchipu.TrainStep, which take replicas, pipelines, gradient '
    "accumulation, recomputation and the places of tensors as options; programs of PopTorch run as they are by import "
    "poptorch.",
)
