"""``horovod.torch.optimizer``: an optimiser whose gradients are those of all processes."""

from torchipu.horovod.optimiser import DistributedOptimizer

__all__ = ["DistributedOptimizer"]
