"""The exceptions of PopTorch, and how tests of programs raise one of each kind."""

from __future__ import annotations

import enum

from torchipu.poptorch import capturing

PY_ERROR = "poptorch_py_error"
CPP_ERROR = "poptorch_cpp_error"
RECOVERY_ACTIONS = ("IPU_RESET", "LINK_RESET", "PARTITION_RESET", "FULL_RESET")


class Error(Exception):
    """What PopTorch raises for mistakes in its use and for failures of the device.

    Attributes:
        type: Which layer raised it, such as ``poptorch_py_error``.
        message: The bare text, without the type that ``str()`` puts before it.
        location: Where in the device program it happened; empty for errors of the Python layer.
    """

    def __init__(self, *args: object, type: str = PY_ERROR, message: str | None = None, location: str = "") -> None:
        super().__init__(*args)
        self.type = type
        self.message = message if message is not None else str(args[0]) if args else ""
        self.location = location

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle with the attributes, for instance out of a worker process."""
        return self.__class__, self.args, self.__dict__


class RecoverableError(Error):
    """A failure of the device after which a reset lets the program go on.

    Attributes:
        recovery_action: One of `RECOVERY_ACTIONS`.
    """

    def __init__(
        self, *args: object, type: str = "poplar_recoverable_runtime_error", message: str | None = None,
        location: str = "", recovery_action: str = "FULL_RESET",
    ) -> None:
        super().__init__(*args, type=type, message=message, location=location)
        self.recovery_action = recovery_action


class UnrecoverableError(Error):
    """A failure of the device after which it needs repair."""


def createPoptorchError(message: str) -> Error:
    """Return the error that a check of the Python layer raises.

    Args:
        message: The bare text.
    """
    return Error(f"'{PY_ERROR}': {message}", message=message)


class TestErrorType(enum.IntEnum):
    """The kinds of error that `_throwTestError` raises."""

    __test__ = False  # pytest takes it for a test by its name

    Poptorch = 0
    Popart = 1
    PopartInternal = 2
    Poplibs = 3
    PoplarUnrecoverable = 4
    PoplarUnknown = 5
    PoplarRecoverableFullReset = 6
    PoplarLinkError = 7


_TEST_ERRORS: dict[TestErrorType, tuple[type[Error], str]] = {
    TestErrorType.Poptorch: (Error, CPP_ERROR),
    TestErrorType.Popart: (Error, "popart_exception"),
    TestErrorType.PopartInternal: (Error, "popart_internal_exception"),
    TestErrorType.Poplibs: (Error, "poplibs_exception"),
    TestErrorType.PoplarUnrecoverable: (UnrecoverableError, "poplar_unrecoverable_runtime_error"),
    TestErrorType.PoplarUnknown: (Error, "poplar_unknown_runtime_error"),
    TestErrorType.PoplarRecoverableFullReset: (RecoverableError, "poplar_recoverable_runtime_error"),
    TestErrorType.PoplarLinkError: (Error, "poplar_link_error"),
}


def _throwTestError(kind: TestErrorType) -> None:
    """Raise an error of a kind, as the device would.

    Args:
        kind: Which.
    """
    cls, origin = _TEST_ERRORS[kind]
    message = "This is a test error"
    location = "_throwTestError"
    lines = [f"In {__name__}:0: '{origin}': {message}"]
    if cls is RecoverableError:
        lines.append("Recovery action required: FULL_RESET")
    lines += ["Error raised in:", f"  [0] {location}"]
    raise cls("\n".join(lines), type=origin, message=message, location=f"[0] {location}")


def isCompilingWithDispatcher() -> bool:
    """Return whether a model is being captured for the IPU at this moment."""
    return capturing.isRunningOnIpu()
