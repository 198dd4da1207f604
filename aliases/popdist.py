"""PopDist's name for `torchipu.popdist`; an installed PopDist comes first."""

from torchipu.alias import stand_in

stand_in(
    __name__, "torchipu.popdist", __file__,
    "Of PopDist, torchipu has popdist and popdist.poptorch. Programs of TensorFlow, PopART and PopXL are out of its "
    "scope: write the model in torch, and share it out by popdist.poptorch.Options or torchipu's option replicas; "
    "values on the host are exchanged by horovod.torch, over torch.distributed.",
)
