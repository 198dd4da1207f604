"""Messages as a user of PopTorch knows them: tensors in them are tensors, whatever stood in for them at capture."""

from __future__ import annotations

import re
from typing import TypeVar

E = TypeVar("E", bound=BaseException)
_CLASS = re.compile(r"<class 'torch\._subclasses\.\w+\.(?:FunctionalTensor|FakeTensor)'>")
_NAME = re.compile(r"(?:torch\._subclasses\.\w+\.)?\b(?:FunctionalTensor|FakeTensor)\b")


def names_tracer(text: str) -> bool:
    """Whether a message shows a class of the tracer."""
    return _NAME.search(text) is not None


def in_plain_words(text: str) -> str:
    """Return a message with torch.Tensor for the classes of the tracer."""
    return _NAME.sub("Tensor", _CLASS.sub("<class 'torch.Tensor'>", text))


def renamed(error: E) -> E:
    """Return an error whose message shows no class of the tracer; it is the same object.

    Args:
        error: Raised while a model was captured.
    """
    error.args = tuple(in_plain_words(one) if isinstance(one, str) else one for one in error.args)
    if isinstance(getattr(error, "message", None), str):
        error.message = in_plain_words(error.message)  # type: ignore[attr-defined]
    return error
