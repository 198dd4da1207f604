"""Systems of Mk2 IPUs: the IPU-M2000 and the IPU-PODs that are built of it."""

from dataclasses import replace

from torchipu.target.mk2 import MK2
from torchipu.target.spec import TARGETS

POD4 = replace(
    MK2,
    name="pod4",
    title="Graphcore IPU-POD4 of Mk2 GC200",
    num_ipus=4,  # one IPU-M2000; vendor data sheet
    linked_ipus=4,  # all four, by links within the machine; vendor data sheet
    is_system=True,
)
POD16 = replace(
    POD4,
    name="pod16",
    title="Graphcore IPU-POD16 of Mk2 GC200",
    num_ipus=16,  # four IPU-M2000; vendor data sheet
    linked_ipus=16,  # IPU-Links lead from each machine to the next; vendor data sheet
)
POD64 = replace(
    POD4,
    name="pod64",
    title="Graphcore IPU-POD64 of Mk2 GC200",
    num_ipus=64,  # 16 IPU-M2000; vendor data sheet
    linked_ipus=64,  # a two-dimensional torus of IPU-Links; vendor data sheet
)
POD128 = replace(
    POD64,
    name="pod128",
    title="Graphcore IPU-POD128 of Mk2 GC200",
    num_ipus=128,  # two POD64 joined by gateway links; results in MLPerf v1.1
)
POD256 = replace(
    POD64,
    name="pod256",
    title="Graphcore IPU-POD256 of Mk2 GC200",
    num_ipus=256,  # 64 IPU-M2000: four POD64 joined by gateway links; vendor data sheet
)

for system in (POD4, POD16, POD64, POD128, POD256):
    TARGETS[system.name] = system
