"""Random programs, compiled and compared with eager PyTorch.

    python -m tests.fuzz graphs --seeds 0:1000 --workers 2
    python -m tests.fuzz nnsmith --seeds 0:200

A seed is a program (`generate`), the same on every machine. It is run by eager PyTorch, by eager PyTorch in float64,
and through one of the doors (`doors`); `judge` says how far ours may be off. A program that fails is cut down
(`minimise`) and written as a script that needs nothing of this package. `found/` holds what failed once; each is a
test.
"""
