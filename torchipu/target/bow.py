"""The Bow IPU: the Mk2 design at a higher clock."""

from dataclasses import replace

from torchipu.target.mk2 import MK2
from torchipu.target.spec import TARGETS

BOW = replace(
    MK2,
    name="bow",
    title="Graphcore Bow",
    clock_hz=1.85e9,  # vendor data sheet; 348.6 TF = clock x tiles x 128 flop
    link_bytes_per_cycle=2 * 128 * 2**30 / 8 * 0.85 / 1.85e9,  # the links keep their speed; see mk2
)

TARGETS[BOW.name] = BOW
