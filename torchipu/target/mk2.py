"""The GC200 (Mk2) IPU as in an IPU-M2000."""

from torchipu.target.spec import TARGETS, Target

MK2 = Target(
    name="mk2",
    title="Graphcore Mk2 GC200",
    num_ipus=64,  # a POD64 behind one process
    num_tiles=1472,  # vendor data sheet
    num_workers=6,  # vendor data sheet: six workers and a supervisor
    clock_hz=1.33e9,  # clock of the published results; 250 TF = clock x tiles x 128 flop
    tile_memory_bytes=638_976,  # 624 KiB; vendor data sheet
    code_region_bytes=212_992,  # region 0, 208 KiB; address map measured on silicon
    amp_macs_half_half=64,  # poplibs target properties
    amp_macs_half_float=32,  # poplibs target properties
    amp_macs_float=16,  # poplibs target properties
    amp_macs_fp8=0,  # the matrix unit takes no floats of 8 bits before ipu21; poplibs target properties
    exchange_bytes_per_cycle=4,  # a 32-bit word a cycle, each direction; vendor data sheet
    sync_cycles=120,  # estimate, from 64-117 cycles for a whole-chip sync on Mk1 silicon plus exchange set-up
    ipu_sync_cycles=600,  # vendor constant for a sync across IPUs; 500-640 cycles measured on 16 Mk1
    # Two of the ten links lead to a neighbour in the ladder: 2 x 128 Gibit/s x 0.85 (poplibs test model) at the clock.
    link_bytes_per_cycle=2 * 128 * 2**30 / 8 * 0.85 / 1.33e9,
    linked_ipus=64,  # a torus of IPU-Links in a POD64, beyond which gateways lead; vendor data sheet
    ipus_per_machine=4,  # an IPU-M2000; vendor data sheet
    # 512 Gb/s from an IPU-M2000 to the next (vendor data sheet) are four links, at the efficiency of a link.
    machine_link_bytes_per_s=4 * 128 * 2**30 / 8 * 0.85,
    gateway_bytes_per_s=2 * 12.5e9 / 4,  # two links of 100 Gb/s for the four IPUs of an IPU-M2000; vendor data sheet
    host_bytes_per_s=12.5e9 / 4,  # 100 Gb/s of an IPU-M2000 shared by four IPUs; vendor data sheet
    host_fill_bytes_per_s=10e9,  # estimate: one thread's copy within a server's memory; nothing is published
    streaming_bytes_per_s=5e9,  # estimate: about 20 GB/s for the four IPUs of an IPU-M2000
    # Two DIMMs of an IPU-M2000; vendor data sheet. Documents of its launch say 448 GB.
    machine_streaming_bytes=256_000_000_000,
    stack_bytes=6 * 512 + 128,  # poplibs tests
    control_bytes_per_compute_set=24,  # of an add in a profile of BERT; ipu_hardware.md 3.6
    state_bytes_per_compute_set=12,  # the same
)

TARGETS[MK2.name] = MK2
