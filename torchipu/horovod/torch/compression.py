"""``horovod.torch.compression``: how floats may travel."""

from torchipu.horovod.exchange import Compression

__all__ = ["Compression"]
