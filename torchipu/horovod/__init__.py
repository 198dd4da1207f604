"""What programs for several IPUs use of Horovod, over torch.distributed; ``import horovod.torch`` gives ours.

A Horovod that is installed comes first: see ``torchipu/alias.py``.
"""

__version__ = "0.28.1"
"""The release of Horovod whose names these are: programs ask it."""
