"""The GC2 (Mk1) IPU."""

from torchipu.target.spec import TARGETS, Target

MK1 = Target(
    name="mk1",
    title="Graphcore Mk1 GC2",
    num_ipus=64,  # 16 to a machine; a process may drive several
    num_tiles=1216,  # vendor data sheet; 1280 are on the die
    num_workers=6,  # vendor data sheet
    clock_hz=1.6e9,  # clock of the published results
    tile_memory_bytes=262_144,  # 256 KiB; vendor data sheet
    code_region_bytes=131_072,  # region 0, 128 KiB; reverse-engineered address map
    amp_macs_half_half=32,  # poplibs target properties
    amp_macs_half_float=32,  # poplibs target properties
    amp_macs_float=8,  # poplibs target properties
    amp_macs_fp8=0,  # the matrix unit takes no floats of 8 bits before ipu21; poplibs target properties
    exchange_bytes_per_cycle=4,  # a 32-bit word a cycle, each direction; vendor data sheet
    sync_cycles=100,  # 64-117 cycles measured for a whole-chip sync in a stencil code
    ipu_sync_cycles=570,  # 500-640 cycles measured on 16 IPUs in the same code
    link_bytes_per_cycle=2 * 128 * 2**30 / 8 * 0.85 / 1.6e9,  # two links to a neighbour; poplibs test model
    linked_ipus=64,  # as many as a POD64 of Mk2
    ipus_per_machine=16,  # eight cards of two; the machine of the published results
    machine_link_bytes_per_s=4 * 128 * 2**30 / 8 * 0.85,  # estimate: as Mk2
    gateway_bytes_per_s=12.5e9 / 16,  # estimate: there are no gateways; 100 Gb/s of a machine's network for 16 IPUs
    host_bytes_per_s=8e9,  # estimate: half of a PCIe3 x16 slot, which a card's two IPUs share
    host_fill_bytes_per_s=10e9,  # estimate: as Mk2
    streaming_bytes_per_s=4e9,  # estimate: there is no Streaming Memory of its own, remote buffers lie in the host
    machine_streaming_bytes=256_000_000_000,  # estimate: of the host's memory
    stack_bytes=6 * 512 + 128,  # poplibs tests
    control_bytes_per_compute_set=24,  # as Mk2
    state_bytes_per_compute_set=12,  # as Mk2
)

TARGETS[MK1.name] = MK1
