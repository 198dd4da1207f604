"""PopTorch's name for `torchipu.poptorch`; an installed PopTorch comes first."""

from torchipu.alias import stand_in

stand_in(__name__, "torchipu.poptorch", __file__)
