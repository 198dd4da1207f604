"""PopTorch's name for `torchipu.poptorch`; an installed PopTorch comes first."""

from torchipu.alias import stand_in

stand_in(
    __name__, "torchipu.poptorch", __file__,
    "torchipu has PopTorch 3.3's public modules, which its docs/poptorch.md lists by their names, and not this one",
)
