"""Horovod's name for `torchipu.horovod`; an installed Horovod comes first."""

from torchipu.alias import stand_in

stand_in(__name__, "torchipu.horovod", __file__)
