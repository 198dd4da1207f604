"""The C600 card: the Mk2 design with floats of 8 bits, and fewer links."""

from dataclasses import replace

from torchipu.target.mk2 import MK2
from torchipu.target.spec import TARGETS

C600 = replace(
    MK2,
    name="c600",
    title="Graphcore C600",
    num_ipus=8,  # up to eight cards by cable; vendor figures in ByteMLPerf
    clock_hz=1.5e9,  # as third parties programme it; 280 TF = clock x tiles x 128 flop asks for 1.486 GHz
    # Two of the four links lead to a neighbour: 2 x 128 Gibit/s x 0.85 (poplibs test model) at the clock.
    link_bytes_per_cycle=2 * 128 * 2**30 / 8 * 0.85 / 1.5e9,
    linked_ipus=8,  # the same eight
    ipus_per_machine=8,  # cards in one host; vendor figures in ByteMLPerf
    machine_link_bytes_per_s=2 * 128 * 2**30 / 8 * 0.85,  # estimate: a cable, though none leads to another machine
    machine_streaming_bytes=256_000_000_000,  # estimate: a card has none, remote buffers lie in the host's memory
    host_bytes_per_s=12.5e9,  # 2 x PCIe4 x8, taken for what a machine of four IPUs shares; ipu_hardware.md 1.5
    gateway_bytes_per_s=12.5e9 / 8,  # estimate: there are no gateways; 100 Gb/s of a machine's network for eight cards
    amp_macs_fp8=128,  # poplibs target properties
)

TARGETS[C600.name] = C600
