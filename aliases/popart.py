"""PopART's name for `torchipu.poptorch.popart`, its enumerations; an installed PopART comes first."""

from torchipu.alias import stand_in

stand_in(
    __name__, "torchipu.poptorch.popart", __file__,
    "Graphs built with PopART are out of torchipu's scope; popart here holds only the enumerations that "
    "poptorch.Options()._Popart takes. Write the model in torch and run it by "
    'torch.compile(model, backend="ipu"), torchipu.TrainStep or poptorch.trainingModel; torchipu.from_onnx makes a '
    "module of an ONNX file, as PopART takes one.",
)
