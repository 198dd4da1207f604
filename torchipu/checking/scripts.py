"""``torchipu check script.py``: the first call of every step that a script makes, on the host and on the machine."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from torchipu.checking.comparison import Check
from torchipu.checking.door import begin_check
from torchipu.errors import OptionsError
from torchipu.script import refuse_missing, run_script
from torchipu.step.base import ProgramStep
from torchipu.step.watching import watching


@dataclass(slots=True)
class Checked:
    """What has become of the steps of a script.

    Attributes:
        checks: By the name of the program, such as ``training of Classifier``.
        skipped: Programs that cannot be checked, each with why.
        error: What ended the script early.
    """

    checks: list[tuple[str, Check]] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)
    error: BaseException | None = None

    @property
    def is_equal(self) -> bool:
        """Whether host and tiles agree in all that was checked, and the script came to its end."""
        return self.error is None and all(check.is_equal for _, check in self.checks)

    def __str__(self) -> str:
        lines = [f"{name}: {check}" for name, check in self.checks]
        lines += [f"{name}: not checked: {why}" for name, why in self.skipped]
        if not lines:
            lines.append("no step was called: check looks at torchipu.TrainStep, InferenceStep and PopTorch's models")
        if self.error is not None:
            lines.append(f"the script ended early: {type(self.error).__name__}: {self.error}")
        return "\n".join(lines)


def check_script(path: str, arguments: Sequence[str] = ()) -> Checked:
    """Run a script as ``python path arguments...`` would; check the first call of each of its steps.

    Raises:
        FileNotFoundError: There is no such script.
    """
    refuse_missing(path)
    checked = Checked()
    seen: weakref.WeakSet[ProgramStep] = weakref.WeakSet()

    def watcher(step: ProgramStep, inputs: Sequence[torch.Tensor]) -> Callable[[Any], None] | None:
        if step in seen:
            return None
        seen.add(step)
        name = f"{step.compiled.graph.name} of {type(step.model).__name__}"
        try:
            finished = begin_check(step, inputs)
        except OptionsError as refusal:
            checked.skipped.append((name, str(refusal).partition("\n")[0]))
            return None
        return lambda given: checked.checks.append((name, finished(given)))

    try:
        with watching(watcher):
            run_script(path, arguments)
    except SystemExit as end:
        if end.code not in (None, 0):
            checked.error = end
    except Exception as error:  # whatever the user's code raises: what was found before it is still of use
        checked.error = error
    return checked
