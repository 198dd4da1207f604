"""Lets timm and transformers be imported beside a torch that the operators of torchvision were not built for.

Both need torchvision for image files alone, yet import all of it. The torchvision of PyPI is built for a torch with
CUDA: next to one without, they do not load, and it then fails at the first fake kernel that it registers.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys

from torch import library

_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_OPERATORS = ("torchvision::nms", "torchvision::qnms")


def import_torchvision() -> None:
    """Import torchvision, if there is one; where its operators are missing, declare those that it gives fakes for."""
    if importlib.util.find_spec("torchvision") is None:  # transformers does without
        return
    try:
        importlib.import_module("torchvision")
    except RuntimeError as error:
        if "torchvision::nms" not in str(error):
            raise
        for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[name]
        for name in _OPERATORS:
            library.define(name, _SCHEMA)
        importlib.import_module("torchvision")
