"""Lets timm and transformers be imported beside a torch that the library of torchvision was not built for.

Both need torchvision for image files alone, yet import all of it. The torchvision of PyPI is built for a torch with
CUDA: next to one without, its library does not load, and it then fails at the first fake kernel that it registers.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys

import torch

_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
_libraries: list[torch.library.Library] = []  # what a library defines goes when the library goes


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
        library = torch.library.Library("torchvision", "DEF")
        for schema in _SCHEMAS:
            library.define(schema)
        _libraries.append(library)
        importlib.import_module("torchvision")
