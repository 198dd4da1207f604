"""Kernels of look-ups, gathers and scatters."""

from .kernel import AnyKernel, Kernel

TAKE_ROWS: AnyKernel = Kernel("take_rows")
BUCKET: AnyKernel = Kernel("bucket")
SUM_ROWS: AnyKernel = Kernel("sum_rows")
PUT_ROWS: AnyKernel = Kernel("put_rows")
FLATTEN_INDEX: AnyKernel = Kernel("flatten_index")
COPY_BYTES: AnyKernel = Kernel("copy_bytes")
BAG_ROWS: AnyKernel = Kernel("bag_rows")
BAG_OF: AnyKernel = Kernel("bag_of")
BAG_ROWS_GRAD: AnyKernel = Kernel("bag_rows_grad")
BAG_MAX_GRAD: AnyKernel = Kernel("bag_max_grad")
BAG_WEIGHTS_GRAD: AnyKernel = Kernel("bag_weights_grad")
SCALE_BY_COUNT: AnyKernel = Kernel("scale_by_count")
RENORM_ROWS: AnyKernel = Kernel("renorm_rows")
