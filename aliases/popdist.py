"""PopDist's name for `torchipu.popdist`; an installed PopDist comes first."""

from torchipu.alias import stand_in

stand_in(__name__, "torchipu.popdist", __file__)
