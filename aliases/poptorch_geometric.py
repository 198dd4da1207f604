"""PopTorch Geometric's name for `torchipu.geometric`; an installed PopTorch Geometric comes first."""

from torchipu.alias import stand_in

stand_in(
    __name__, "torchipu.geometric", __file__,
    "torchipu gives PopTorch Geometric's names in poptorch_geometric itself; its docs/geometric.md lists them",
)
