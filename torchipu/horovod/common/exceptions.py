"""``horovod.common.exceptions``: what a failed exchange raises."""

from torchipu.horovod.collectives import HorovodInternalError

__all__ = ["HorovodInternalError"]
