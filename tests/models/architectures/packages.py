"""Imports the libraries, and what torch imports at a first compilation: by far the longest part of many comparisons."""

from __future__ import annotations

import importlib

import torch

from tests.models.architectures.catalogue import PACKAGES
from tests.models.architectures.torchvision_schemas import import_torchvision

import_torchvision()
for package in PACKAGES:
    importlib.import_module(package)
# Neither threads nor the autograd engine may start here: processes are forked from this one.
torch.set_num_threads(1)
with torch.no_grad():
    torch.compile(torch.nn.Linear(2, 2), backend="ipu", options={"host_threads": 1})(torch.ones(1, 2))
torch._dynamo.reset()
