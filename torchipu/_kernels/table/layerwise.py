"""Kernels of LAMB and LARS."""

from .kernel import AnyKernel, Kernel

LAMB_DIRECTION: AnyKernel = Kernel("lamb_direction")
LARS_NORMS: AnyKernel = Kernel("lars_norms")
TRUST_RATIO: AnyKernel = Kernel("trust_ratio")
LAMB_APPLY: AnyKernel = Kernel("lamb_apply")
LARS_APPLY: AnyKernel = Kernel("lars_apply")
