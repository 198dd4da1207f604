"""Kernels of three-dimensional convolutions."""

from .kernel import AnyKernel, Kernel

VOLUME_FORWARD: AnyKernel = Kernel("volume_forward")
VOLUME_INPUT: AnyKernel = Kernel("volume_input")
VOLUME_WEIGHT: AnyKernel = Kernel("volume_weight")
VOLUME_BIAS: AnyKernel = Kernel("volume_bias")
