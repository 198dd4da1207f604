"""Errors of torch while it captures, as ours: with the user's line, and what to do instead."""

from __future__ import annotations

import contextlib
import logging
import re
import sysconfig
import threading
import traceback
from collections.abc import Iterator

from torch._dynamo.exc import TorchDynamoException
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

from torchipu.capture.fx_source import OUR_ROOT, TORCH_ROOT, line_in
from torchipu.errors import CaptureError, IpuError
from torchipu.ir.types import Source

_INSTEAD = {
    "sparse": "compute with dense tensors: make sparse ones outside of the model, and hand over to_dense() of them",
    "NestedTensor": "pad to one size with Tensor.to_padded_tensor, and mask what is padding",
    "requires_grad_()": "take derivatives by a value of its own: x = x.detach().requires_grad_()",
    "tensor subclass": "pass plain tensors; the parameters of a model that poptorch has wrapped are plain again after "
    "destroy()",
    "on inference tensor": "make the model outside torch.inference_mode(), or load its state_dict() into one made so",
    "quantized": "compute with float16 or float32: call dequantize() outside of the model",
}
"""What to do about kinds of tensors that Dynamo does not take; its own hints speak of compiled functions."""


def as_capture_error(error: BaseException) -> IpuError:
    """Return our error for one of torch's: ours if it wraps one, else a CaptureError with torch's reason."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, IpuError):
            return seen
        seen = getattr(seen, "inner_exception", None) or seen.__cause__
    if isinstance(error, (DynamicOutputShapeException, DataDependentOutputException)):
        what = "shape" if isinstance(error, DynamicOutputShapeException) else "value on the host"
        return CaptureError(
            f"the model cannot be captured as one graph: the {what} of {error.func} depends on data",
            source=_user_line(error),
            remedy=_IN_PLACE_OF_VALUES,
        )
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reason = lines[0] if lines else type(error).__name__
    if reason.startswith("Could not extract specialized integer"):
        return CaptureError(
            "the model cannot be captured as one graph: a size or an index on the host depends on data",
            source=_user_line(error), detail=reason, remedy=_IN_PLACE_OF_VALUES,
        )
    if isinstance(error, TypeError) and _OF_A_CALL.match(reason):
        return CaptureError(
            f"the model cannot be called with these arguments: {reason}", source=_user_line(error),
            remedy="pass what its forward takes, by place or by name",
        )
    if "fake tensor" in reason and (raised := _RAISED.search(str(error))):
        return CaptureError(
            f"the model cannot be captured as one graph: {_sizes_told(raised['text'])}", source=_user_line(error),
            remedy=_remedy_for(raised["text"]),
        )
    if told := _raised_by_forward(reason, str(error)):
        return CaptureError(
            f"the model cannot be captured as one graph: {told}", source=_user_line(error),
            remedy="pass inputs that the model takes; called eagerly with the same ones, it tells where it raises this",
        )
    if foreign := _FOREIGN.search(reason):
        return CaptureError(
            f"the model cannot be captured as one graph: an input is a {foreign['kind']}",
            remedy="pass tensors (as torch.from_numpy makes one of an array), numbers, strings, or lists, tuples and "
            "dicts of these; a dataclass of your own after torch.export.register_dataclass(its class)",
        )
    remedy = next((words for word, words in _INSTEAD.items() if word in reason), "")
    if not remedy:
        remedy = next((line.removeprefix("Hint: ") for line in lines if line.startswith("Hint: ")), "")
    explained = [line for line in lines if line.startswith("Explanation:")]
    return CaptureError(
        f"the model cannot be captured as one graph: {reason}", source=_user_line(error), detail="\n".join(explained),
        remedy=remedy or "see the error below this one for torch's reason",
    )


_IN_PLACE_OF_VALUES = (
    "use torch.where, a mask or padding to a fixed size; keep .item() out of forward (a step reads a tensor that is a "
    "plain attribute or a global anew at each call, so that its values are no constants: take numbers of it in "
    "__init__), and write x[i.reshape(1)][0] for x[i] where i is a tensor without dimensions"
)
_DERIVATIVES = (
    "inference runs without gradients: take those that forward computes of itself under torch.enable_grad(), by "
    "values on which requires_grad_() was called there"
)
_OF_A_CALL = re.compile("missing a required|too many positional|got an unexpected keyword|multiple values for argument")
"""How Python begins what it says of arguments that do not fit a signature."""


def _remedy_for(text: str) -> str:
    """Return what to do about what a call raised on tensors without values."""
    if "does not require grad" in text:
        return _DERIVATIVES
    is_of_types = re.search(r"\b(dtypes?|scalar types?)\b", text) is not None
    return f"pass inputs of the {'types' if is_of_types else 'sizes'} that the model was made for"


def _raised_by_forward(reason: str, text: str) -> str:
    """Return what Dynamo has seen the model raise, or "" where it ended for another reason."""
    if reason.startswith("Observed exception") and (raised := _OBSERVED.search(text)):
        words = raised["text"].strip()
        if len(words) > 1 and words[0] == words[-1] and words[0] in "'\"":
            words = words[1:-1]
        return f"forward raises {raised['kind']}{': ' if words else ''}{words}"
    if reason.startswith("Data-dependent assertion failed") and "ConstantVariable(bool: False)" in text:
        return "an assertion of forward does not hold"
    return ""


_OBSERVED = re.compile(r"raised exception (?P<kind>\w+)\((?P<text>.*?)\)$", re.DOTALL | re.MULTILINE)
"""How Dynamo writes what the model raised and did not catch."""
_RAISED = re.compile(r"got (?P<kind>\w+)\((?P<quote>['\"])(?P<text>.*?)(?P=quote)\)", re.DOTALL)
"""How Dynamo writes what a call raised on tensors without values."""
_FOREIGN = re.compile(r"inputs with type `<class '(?P<kind>[^']*)'>` is not supported or pytree-flattenable")
"""How torch names an input of a class that it does not know."""
_PYTHON_ROOT = sysconfig.get_paths()["stdlib"]
_PRODUCT = re.compile(r"same reduction dim, but got \[(?P<left>[\d, ]+)\] X \[(?P<right>[\d, ]+)\]")


def _sizes_told(text: str) -> str:
    """Return what torch says of sizes that do not fit, with what a product expected and got first."""
    found = _PRODUCT.search(text)
    if found is None:
        return text
    got, expected = found["left"].split(", ")[-1], found["right"].split(", ")[0]
    return f"expected {expected} features in the last dimension and got {got} ({text})"


@contextlib.contextmanager
def without_torchs_log() -> Iterator[None]:
    """Keep torch from writing the stack of what a call raises in this thread: the error that follows tells of it."""
    log, mine = logging.getLogger("torch._subclasses.fake_tensor"), threading.get_ident()

    def is_of_others(entry: logging.LogRecord) -> bool:
        return entry.thread != mine or entry.levelno != logging.ERROR

    log.addFilter(is_of_others)
    try:
        yield
    finally:
        log.removeFilter(is_of_others)


def _user_line(error: BaseException) -> Source | str:
    """Return the user's line that an error of torch speaks of."""
    told = str(error).partition("Original traceback:")[2]
    if told:
        return line_in(told)
    stack = list(getattr(error, "real_stack", None) or [])
    if not stack and not isinstance(error, TorchDynamoException) and error.__traceback__ is not None:
        stack = list(traceback.extract_tb(error.__traceback__))
    mine = [
        frame for frame in stack if not frame.filename.startswith((TORCH_ROOT, OUR_ROOT, "<"))
        and (not frame.filename.startswith(_PYTHON_ROOT) or "site-packages" in frame.filename)
    ]
    if not mine:
        return ""
    return Source(mine[-1].filename, mine[-1].lineno or 0, (mine[-1].line or "").strip())
