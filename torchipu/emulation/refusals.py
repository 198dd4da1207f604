"""What the machines do not run, refused before they begin."""

from __future__ import annotations

from torchipu.emulation.eager import is_known
from torchipu.errors import OptionsError
from torchipu.ir.graph import Graph, walk_ops
from torchipu.options import Options


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


def refuse_ops(graph: Graph) -> None:
    """Refuse ops that nothing but the host computes.

    Raises:
        OptionsError: It names the op.
    """
    for op in walk_ops(graph.ops):
        if not is_known(op):
            raise OptionsError(
                f"there is nothing independent to compute {op.target} with", option="optimizer", value=op.target,
                remedy="check the model with SGD, Adam, AdamW or RMSprop, without automatic loss scaling",
            )
