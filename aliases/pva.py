"""libpva's name for `torchipu.pva`; an installed one of Graphcore's comes first."""

from torchipu.alias import stand_in

stand_in(__name__, "torchipu.pva", __file__)
