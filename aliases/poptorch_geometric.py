"""PopTorch Geometric's name for `torchipu.geometric`; an installed PopTorch Geometric comes first."""

from torchipu.alias import stand_in

stand_in(__name__, "torchipu.geometric", __file__)
