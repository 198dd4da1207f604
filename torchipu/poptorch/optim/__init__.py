"""Optimisers with PopTorch's arguments: loss scaling, types of accumulators, and states that travel with the device."""

from torchipu.poptorch.optim.adam import Adam, AdamW
from torchipu.poptorch.optim.attributes import VariableAttributes
from torchipu.poptorch.optim.lamb import LAMB
from torchipu.poptorch.optim.optimizer import Optimizer
from torchipu.poptorch.optim.rmsprop import RMSprop
from torchipu.poptorch.optim.sgd import SGD

__all__ = ["LAMB", "SGD", "Adam", "AdamW", "Optimizer", "RMSprop", "VariableAttributes"]
