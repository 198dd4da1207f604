"""What the machines do not run, refused before they begin."""

from __future__ import annotations

from torchipu.emulation.eager import is_known
from torchipu.errors import OptionsError
from torchipu.ir.graph import Graph, walk_ops
from torchipu.options import Options

OF_NORMS = ("lamb", "lars")


def refuse_options(options: Options, *, has_members: bool) -> None:
    """Refuse options under which host and tiles are not to be compared.

    Args:
        options: Of the step.
        has_members: Whether other processes take part.

    Raises:
        OptionsError: Other processes take part.
    """
    if has_members or options.pipeline_group is not None:
        name = "process_group" if options.pipeline_group is None else "pipeline_group"
        raise OptionsError(
            f"the machine runs in one process, and {name} names others", option=name, value=getattr(options, name),
            remedy="check the model in one process: its device program is the same",
        )


def refuse_ops(graph: Graph, options: Options) -> None:
    """Refuse ops that nothing but the host computes.

    Args:
        graph: With the ops.
        options: Of the step.

    Raises:
        OptionsError: It names the op.
    """
    location = options.optimiser_state_location
    for op in walk_ops(graph.ops):
        if op.kind in OF_NORMS and options.replicas > 1 and location is not None and location.replicated_sharding:
            raise OptionsError(
                f"{op.target} scales by norms of whole weights, of which a replica has a share", value=location,
                option="optimiser_state_location", remedy="check the model without replicated_sharding",
            )
        if not is_known(op):
            raise OptionsError(
                f"there is nothing independent to compute {op.target} with", option="optimizer", value=op.target,
                remedy="check the model with another optimiser",
            )
