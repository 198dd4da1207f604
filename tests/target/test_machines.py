"""Machine models: the table is complete, and peaks follow from the numbers."""

import pytest

from torchipu.device.matrix_unit import amp_cycles, conv_units
from torchipu.errors import OptionsError
from torchipu.target import TARGETS, lookup_target


def test_all_machines_are_in_the_table_once_the_package_is_imported():
    assert set(TARGETS) == {
        "mk1", "mk2", "bow", "c600", "pod4", "pod16", "pod64", "pod128", "pod256", "bow-2000", "bow-pod16",
        "bow-pod64", "bow-pod128", "bow-pod256",
    }
    assert all(target.name == name for name, target in TARGETS.items())


# Vendor data sheets: fp16 with fp16 partials, and fp32, in TFLOP/s.
@pytest.mark.parametrize(
    ("name", "half_peak", "single_peak"),
    [("mk1", 124.5, 31.1), ("mk2", 250, 62.5), ("bow", 350, 87.5), ("c600", 280, 70)],
)
def test_peak_rate_is_clock_times_tiles_times_macs(name, half_peak, single_peak):
    target = lookup_target(name)
    per_mac = 2 * target.clock_hz * target.num_tiles / 1e12
    assert per_mac * target.amp_macs_half_half == pytest.approx(half_peak, rel=0.01)
    assert per_mac * target.amp_macs_float == pytest.approx(single_peak, rel=0.01)


@pytest.mark.parametrize("name", ["mk1", "mk2", "bow", "c600"])
@pytest.mark.parametrize(("is_half", "half_partials", "rate"), [
    (True, True, "amp_macs_half_half"), (True, False, "amp_macs_half_float"), (False, False, "amp_macs_float"),
])
def test_a_long_call_of_the_matrix_unit_comes_near_the_rate_of_its_machine_and_never_over(
    name, is_half, half_partials, rate,
):
    target = lookup_target(name)
    units = conv_units(target, is_half=is_half, half_partials=half_partials)
    positions, inputs, outputs = 8192, 64, 4 * units
    work = {
        "positions": positions, "inputs": inputs, "outputs": outputs, "is_half": int(is_half), "output_group": units,
    }
    macs_a_cycle = positions * inputs * outputs / amp_cycles(target, work)
    assert 0.9 * getattr(target, rate) < macs_a_cycle <= getattr(target, rate)


def test_only_the_c600_multiplies_floats_of_8_bits_at_560_teraflops():
    target = lookup_target("c600")
    assert 2 * target.clock_hz * target.num_tiles * target.amp_macs_fp8 / 1e12 == pytest.approx(560, rel=0.01)
    assert all(other.amp_macs_fp8 == 0 for name, other in TARGETS.items() if name != "c600")


def test_mk2_holds_about_900_megabytes():
    target = lookup_target("mk2")
    assert target.num_tiles * target.tile_memory_bytes / 2**20 == pytest.approx(897, abs=1)


def test_unknown_machine_is_refused_with_the_nearest_name():
    with pytest.raises(OptionsError, match=r"unknown target 'mk3'; did you mean 'mk[12]'?"):
        lookup_target("mk3")
