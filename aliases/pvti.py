"""libpvti's name for `torchipu.pvti`; an installed one of Graphcore's comes first."""

from torchipu.alias import stand_in

stand_in(__name__, "torchipu.pvti", __file__)
