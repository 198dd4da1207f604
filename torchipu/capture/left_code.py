"""Code that Dynamo leaves to eager for one backend alone: it itself remembers such code whatever backend comes next."""

from __future__ import annotations

import dataclasses
import types
from typing import Generic, TypeVar

from torch._C._dynamo.eval_frame import _FrameAction as FrameAction
from torch._dynamo import convert_frame
from torch._dynamo.types import ConvertFrameReturn

Reason = TypeVar("Reason")


def is_left(found: ConvertFrameReturn) -> bool:
    """Whether Dynamo has made nothing of a frame, and lets it run as it is."""
    return found.guarded_code is None and found.frame_exec_strategy.cur_action == FrameAction.SKIP


class LeftCode(Generic[Reason]):
    """Code that was left to eager, each with a reason, until `torch._dynamo.reset` is called."""

    def __init__(self) -> None:
        self._reasons: dict[types.CodeType, Reason] = {}
        self._mark = (lambda: None).__code__.replace(co_name="left")  # which a reset forgets among all that was seen

    def reason(self, code: types.CodeType) -> Reason | None:
        """Return why some code was left, or None where it was not."""
        if self._reasons and self._mark not in convert_frame.input_codes:
            self._reasons.clear()
        return self._reasons.get(code)

    def add(self, code: types.CodeType, reason: Reason, found: ConvertFrameReturn) -> ConvertFrameReturn:
        """Note some code; return Dynamo's word on it for this call alone."""
        self._reasons[code] = reason
        convert_frame.input_codes.add(self._mark)
        return dataclasses.replace(found, apply_to_code=False)

    @staticmethod
    def again(why: str) -> ConvertFrameReturn:
        """Return Dynamo's word on code that was left before."""
        return ConvertFrameReturn(apply_to_code=False, skip_reason=why)
