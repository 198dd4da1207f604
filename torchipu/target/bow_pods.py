"""Systems of Bow IPUs: the Bow-2000 and the Bow Pods that are built of it."""

from dataclasses import replace

from torchipu.target.bow import BOW
from torchipu.target.spec import TARGETS

BOW_2000 = replace(
    BOW,
    name="bow-2000",
    title="Graphcore Bow-2000",
    num_ipus=4,  # 1.4 PFLOP/s of halves are four of 350; vendor data sheet
    linked_ipus=4,  # all four, by links within the machine; vendor data sheet
    is_system=True,
)
BOW_POD16 = replace(
    BOW_2000,
    name="bow-pod16",
    title="Graphcore Bow Pod16",
    num_ipus=16,  # four Bow-2000; vendor data sheet
    linked_ipus=16,  # IPU-Links lead from each machine to the next; vendor data sheet
)
BOW_POD64 = replace(
    BOW_2000,
    name="bow-pod64",
    title="Graphcore Bow Pod64",
    num_ipus=64,  # 16 Bow-2000; vendor data sheet
    linked_ipus=64,  # a two-dimensional torus of IPU-Links; vendor data sheet
)
BOW_POD128 = replace(
    BOW_POD64,
    name="bow-pod128",
    title="Graphcore Bow Pod128",
    num_ipus=128,  # estimate: two Bow Pod64 joined by gateway links, as the POD128 of Mk2
)
BOW_POD256 = replace(
    BOW_POD64,
    name="bow-pod256",
    title="Graphcore Bow Pod256",
    num_ipus=256,  # 64 Bow-2000: four Bow Pod64 joined by gateway links; results in MLPerf v2.0
)

for system in (BOW_2000, BOW_POD16, BOW_POD64, BOW_POD128, BOW_POD256):
    TARGETS[system.name] = system
