"""``horovod.torch.compression``: how values may travel."""

from torchipu.horovod.compression import Compression, Compressor, FP16Compressor, NoneCompressor

__all__ = ["Compression", "Compressor", "FP16Compressor", "NoneCompressor"]
