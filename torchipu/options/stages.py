"""The stages of a model, as a user gives them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torchipu.errors import OptionsError
from torchipu.options.kinds import normal


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage of the model, or a phase in phased execution.

    Attributes:
        blocks: Names of the blocks that run in it.
        ipu: IPU that computes it; None for what its blocks ask, else for the stage's own number.
    """

    blocks: tuple[str, ...]
    ipu: int | None = None


def stages_of(given: object) -> tuple[Stage, ...] | None:
    """Return the stages that a list of blocks, of lists of blocks, or of stages describes."""
    if given is None:
        return None
    rule = "a list of stages, each a Stage, a block name or a list of block names"
    if not isinstance(given, (list, tuple)) or not given:
        raise OptionsError(f"option 'stages' expects {rule}, got {given!r}", option="stages", value=given, allowed=rule)
    stages = []
    for position, item in enumerate(given):
        stage = item if isinstance(item, Stage) else Stage((item,) if isinstance(item, str) else item)
        names = normal(stage.blocks, tuple)
        ipu = None if stage.ipu is None else normal(stage.ipu, int)
        if not names or not all(names) or (stage.ipu is not None and (ipu is None or ipu < 0)):
            raise OptionsError(
                f"stage {position} is {item!r}, which is no stage", option="stages", value=item, allowed=rule,
            )
        stages.append(Stage(names, ipu))
    _check_stages(stages)
    return tuple(stages)


def _check_stages(stages: list[Stage]) -> None:
    """Refuse a block that is in two stages, or twice in one."""
    found: dict[str, int] = {}
    for number, stage in enumerate(stages):
        for block in stage.blocks:
            if block in found:
                first = found[block]
                where = f"stage {number} twice" if first == number else f"stage {first} and in stage {number}"
                raise OptionsError(
                    f"block {block!r} is in {where}", option="stages", value=block,
                    allowed="every block once\n" + format_stages(stages, number, f"{block!r} again"),
                    remedy="name the block in the stage where it belongs only",
                )
            found[block] = number


def format_stages(stages: Iterable[Stage], arrow_at: int | None = None, note: str = "") -> str:
    """Return stages as a table: number, blocks and, where it is given, the IPU."""
    lines = [
        f"stage {number}: {', '.join(stage.blocks)}" + ("" if stage.ipu is None else f"  (ipu {stage.ipu})")
        for number, stage in enumerate(stages)
    ]
    if arrow_at is not None:
        lines[arrow_at] += f"   <-- {note}"
    return "\n".join(lines)
