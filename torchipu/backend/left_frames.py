"""Functions of which Dynamo makes no graph at all, as where it cannot go on after a break: told, or refused.

At other breaks it compiles what comes before and behind, and asks the backend. Of these it asks none: such a function
would run in eager with nothing said, under ``strict`` too.
"""

from __future__ import annotations

import sysconfig
import threading
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sympy  # type: ignore[import-untyped]
from torch._dynamo import convert_frame
from torch._dynamo.types import ConvertFrameReturn

from torchipu.capture.backends import is_ours, options_of
from torchipu.capture.capture_errors import as_capture_error
from torchipu.capture.fx_source import OUR_ROOT, TORCH_ROOT
from torchipu.capture.left_code import LeftCode, is_left
from torchipu.errors import CaptureError, IpuError

_WHOLE = "the model cannot be captured as one graph: "
_REMEDY = (
    "keep what breaks the graph out of loops, with blocks and try blocks, where torch cannot go on after it: "
    "docs/graph_breaks.md says what to write instead"
)
_INSTALLED = tuple(sysconfig.get_paths()[name] for name in ("purelib", "platlib"))
_STANDARD = ("<frozen", sysconfig.get_paths()["stdlib"])
_OF_TORCH = (TORCH_ROOT, OUR_ROOT, str(Path(sympy.__file__).parent))
"""Where torch and what it computes sizes with lie."""


class _Thread(threading.local):
    """What the frame that a thread traces has ended with."""

    error: Exception | None = None


_thread = _Thread()
_left: LeftCode[IpuError] = LeftCode()
"""Code of users that no graph was made of, and why."""


def register() -> None:
    """Have Dynamo tell of frames that it leaves to eager."""
    if convert_frame.ConvertFrame.__call__.__module__ == __name__:
        return
    for converter, ours in ((convert_frame.ConvertFrameAssert, _noting), (convert_frame.ConvertFrame, _telling)):
        converter.__call__ = ours(converter.__call__)  # type: ignore[method-assign]


def _noting(plain: Callable[..., ConvertFrameReturn]) -> Callable[..., ConvertFrameReturn]:
    """Return Dynamo's way to trace a frame, which notes what it raises: another one hides that."""

    def call(self: Any, *args: Any, **kwargs: Any) -> ConvertFrameReturn:
        _thread.error = None
        try:
            return plain(self, *args, **kwargs)
        except Exception as error:
            _thread.error = error
            raise

    return call


def _telling(plain: Callable[..., ConvertFrameReturn]) -> Callable[..., ConvertFrameReturn]:
    """Return Dynamo's way to trace a frame or to leave it to eager, which tells of the latter."""

    def call(self: Any, frame: Any, *args: Any, **kwargs: Any) -> ConvertFrameReturn:
        backend, code = self._torchdynamo_orig_backend, frame.f_code
        if not is_ours(backend):
            return plain(self, frame, *args, **kwargs)
        is_strict = bool(options_of(backend).get("strict"))
        known = _left.reason(code)
        if known is not None:
            if is_strict:
                raise _refusal(code, known)
            return _left.again("a break of the graph")
        found = plain(self, frame, *args, **kwargs)
        raised, _thread.error = _thread.error, None
        if raised is None or not is_left(found) or _is_of_libraries(code):
            return found
        error = as_capture_error(raised)
        if is_strict:
            raise _refusal(code, error)
        _tell(code, error)
        return _left.add(code, error, found)

    return call


def _is_of_libraries(code: types.CodeType) -> bool:
    """Whether code is none of the user's, as where compiled autograd runs within a frame: what it calls is traced."""
    of_python = code.co_filename.startswith(_STANDARD) and not code.co_filename.startswith(_INSTALLED)
    return of_python or code.co_filename.startswith(_OF_TORCH)


def _named(code: types.CodeType) -> str:
    return f"{code.co_qualname} ({code.co_filename}:{code.co_firstlineno})"


def _refusal(code: types.CodeType, error: IpuError) -> CaptureError:
    what = f"strict: torch leaves {_named(code)} to eager: {_reason(error)}"
    return CaptureError(what, source=error.source, remedy=_REMEDY)


def _reason(error: IpuError) -> str:
    """Return why there is no graph, with torch's explanation, in one line."""
    reason, explained = error.message.removeprefix(_WHOLE), error.detail.partition("\n")[0]
    return f"{reason}: {explained.removeprefix('Explanation: ').rstrip('.')}" if explained else reason


def _tell(code: types.CodeType, error: IpuError) -> None:
    """Warn that a function runs in eager."""
    at = f" at {error.source}" if error.source else ""
    warnings.warn(
        f"torchipu: torch runs {_named(code)} in eager, and not as an IPU would: "
        f"{_reason(error)}{at}. It may compile what is called there. "
        f"{_REMEDY[0].upper()}{_REMEDY[1:]}", stacklevel=2,
    )
