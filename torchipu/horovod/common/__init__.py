"""``horovod.common``: what the front ends of Horovod share."""
