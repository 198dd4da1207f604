"""Scans."""

from .kernel import AnyKernel, Kernel

SCAN: AnyKernel = Kernel("scan")
SCAN_EXTREMES: AnyKernel = Kernel("scan_extremes")
