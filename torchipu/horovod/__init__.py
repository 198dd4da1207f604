"""What programs for several IPUs use of Horovod, over torch.distributed; ``import horovod.torch`` gives ours.

A Horovod that is installed comes first: see ``torchipu/alias.py``.
"""
