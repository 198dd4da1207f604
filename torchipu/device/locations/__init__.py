"""Moves variables off chip and shares them out among replicas, as the options say, in a program that is lowered.

Kept by later passes: what is off chip is on its tiles only between the first and the last use in each function.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from torchipu.device.locations.link_stashes import link_stashes, with_store
from torchipu.device.locations.shares import with_shares, with_whole_weights
from torchipu.device.locations.transfers import with_overlaps, with_transfers
from torchipu.device.locations.uses import leg_of, over_others, used_by, written_by
from torchipu.ir.mapping import linear
from torchipu.ir.program import Copy, Executable, Variable, leaves_of
from torchipu.ir.types import Role
from torchipu.options import Options, TensorLocation
from torchipu.target import Target


def locate(executable: Executable, options: Options, target: Target) -> Executable:
    """Return a program whose variables are where the options want them.

    Args:
        executable: From the lower pass.
        options: The four locations, ``offload_optimiser_state`` and the overlaps of host streams are read.
        target: The machine, for the size of a share of a variable.

    Returns:
        The program with transfers of Streaming Memory around the uses of what is off chip; with sums of gradients
        that leave each replica its share, updates of that share, and the weights gathered after, for what is shared
        out, or before each use for weights that are so themselves; the same object where all is on chip and whole.
        Values are not concerned.

    Source: PopART's tensor locations and replicated tensor sharding, ``ipu_hardware.md`` 4.2 and 4.3.
    """
    locations = {role: place for role, place in places(options).items() if place != TensorLocation()}
    overlaps = {True: options.overlap_inputs, False: options.overlap_outputs}
    if not locations and set(overlaps.values()) == {"none"}:
        return executable
    sent = _sent(executable)
    within_leg = not options.liveness.startswith("off_chip_after_forward")
    links = link_stashes(executable, locations, sent, within_leg=within_leg)
    moved = {
        variable: links[variable].buffer if variable in links
        else _moved(variable, executable, locations, target, sent, within_leg=within_leg)
        for variable in executable.variables
    }
    changes = {variable: new for variable, new in moved.items() if new is not variable}
    functions = dict(executable.functions)
    wholes: list[Variable] = []
    if executable.replicas > 1:
        functions, wholes = with_whole_weights(functions, changes, executable.replicas)
        functions, norms = with_shares(functions, changes, target)
        wholes += norms
    functions = {
        name: over_others(program, {**changes, **{v: link.seen_by(name) for v, link in links.items()}})
        for name, program in functions.items()
    }
    functions = {name: with_transfers(program, locations) for name, program in functions.items()}
    for link in links.values():
        functions[link.storer] = with_store(functions[link.storer], link, locations)
    functions = {name: with_overlaps(program, overlaps) for name, program in functions.items()}
    variables = (*(moved[variable] for variable in executable.variables), *(v.stash for v in links.values()), *wholes)
    programs = {name: over_others(program, changes) for name, program in executable.programs.items()}
    return replace(executable, functions=functions, variables=variables, programs=programs)


def places(options: Options) -> dict[Role, TensorLocation]:
    """Return where tensors of each role lie."""
    # PopTorch's phases leave nothing on the chip for those that follow.
    is_phased = options.execution.endswith("_phased")
    usual = TensorLocation(on_chip=not is_phased)
    states = TensorLocation(on_chip=False) if options.offload_optimiser_state else usual
    return {
        Role.WEIGHT: options.weight_location or usual,
        Role.ACTIVATION: _of_activations(options, usual) if is_phased else options.activation_location or usual,
        Role.ACCUMULATOR: options.accumulator_location or usual,
        Role.OPTIMISER_STATE: options.optimiser_state_location or states,
    }


def _of_activations(options: Options, usual: TensorLocation) -> TensorLocation:
    """Return where activations lie between phases."""
    if options.liveness == "always_live":
        return options.activation_location or TensorLocation()
    place = options.activation_location or usual
    if options.liveness.endswith("no_overlap"):
        return replace(place, io_tiles_to_load=False, io_tiles_to_store=False)
    return place


def _sent(executable: Executable) -> set[Variable]:
    """Return what goes from one IPU to another: of that each replica needs all."""
    copies = (one for program in executable.functions.values() for one in leaves_of(program) if isinstance(one, Copy))
    return {variable for one in copies if one.src.ipu != one.dst.ipu for variable in (one.src, one.dst)}


def _moved(
    variable: Variable, executable: Executable, locations: Mapping[Role, TensorLocation], target: Target,
    sent: set[Variable], *, within_leg: bool,
) -> Variable:
    place = locations.get(variable.role)
    if place is None:
        return variable
    if variable.role is Role.ACTIVATION:
        # A stash: made in one function, by its vertices, and read in another.
        is_stash = place.on_chip is False and _is_stash(variable, executable, within_leg=within_leg)
        is_off_chip = is_stash and variable.num_elements >= place.min_elements_off_chip
        return replace(variable, off_chip=True, depth=1) if is_off_chip else variable
    replicas = executable.replicas
    is_shared = (
        place.replicated_sharding and replicas > 1 and variable.num_elements >= place.min_elements_sharding
        and variable not in sent
    )
    if is_shared:
        share = math.ceil(variable.num_elements / replicas)
        grain = target.vector_width(variable.dtype.device_bytes)
        mapping = linear(share, target.num_tiles, grain, grain)
        variable = replace(variable, shape=(share,), mapping=mapping)
    is_off_chip = not place.on_chip and variable.num_elements >= place.min_elements_off_chip
    return replace(variable, off_chip=True) if is_off_chip else variable


def _is_stash(variable: Variable, executable: Executable, *, within_leg: bool) -> bool:
    """Whether vertices of one function make a variable and another function reads it on the same IPU.

    Args:
        variable: An activation.
        executable: The program.
        within_leg: Whether a forward that reads what another forward made counts, and a backward likewise.
    """
    makers = {name for name, program in executable.functions.items() if variable in set(written_by(program))}
    users = {name for name, program in executable.functions.items() if variable in set(used_by(program))}
    sent = any(
        isinstance(step, Copy) and step.src.ipu != step.dst.ipu and step.dst is variable
        for name in users for step in leaves_of(executable.functions[name])
    )
    users = {name for name in users if not name.endswith(".send")}
    others = {name for name in users - makers if within_leg or leg_of(name) not in map(leg_of, makers)}
    return not sent and len(makers) == 1 and bool(others)
