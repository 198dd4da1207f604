"""``horovod.torch.sync_batch_norm``: normalisation by the statistics of all processes."""

from torchipu.horovod.batch_norm import SyncBatchNorm

__all__ = ["SyncBatchNorm"]
