"""Horovod's name for `torchipu.horovod`; an installed Horovod comes first."""

from torchipu.alias import stand_in

stand_in(
    __name__, "torchipu.horovod", __file__,
    "Of Horovod, torchipu has horovod.torch alone, over torch.distributed: without horovod.torch.elastic, and without "
    "the front ends of TensorFlow, Keras and MXNet. Processes are started by poprun, torchrun, mpirun or srun.",
)
