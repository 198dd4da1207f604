"""``horovod.common.exceptions``: what a failed exchange raises."""

from torchipu.horovod.failures import HorovodInternalError

__all__ = ["HorovodInternalError"]
