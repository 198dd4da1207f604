"""``horovod.torch.functions``: objects, parameters and states that all processes take from one."""

from torchipu.horovod.exchange import allgather_object, broadcast_object
from torchipu.horovod.optimiser import broadcast_optimizer_state, broadcast_parameters

__all__ = ["allgather_object", "broadcast_object", "broadcast_optimizer_state", "broadcast_parameters"]
