"""PopART's name for `torchipu.poptorch.popart`, its enumerations; an installed PopART comes first."""

from torchipu.alias import stand_in

stand_in(__name__, "torchipu.poptorch.popart", __file__)
