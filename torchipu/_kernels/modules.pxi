# What a model is made of, asked for before each call: walking it in Python takes as long as a small program runs.


def members_of(model):
    """Return what a model is made of, such that equal answers mean the same modules' members in the same modes.

    Args:
        model: A ``torch.nn.Module``.

    Returns:
        Whether each module trains, in the order in which a walk by breadth meets them, each once; identity of each
        parameter and whether it asks for gradients; identity of each buffer.
    """
    cdef list modes = [], parameters = [], buffers = [], found = [model]
    cdef set known = {<uintptr_t><PyObject *>model}
    cdef Py_ssize_t place = 0
    while place < len(found):
        module = found[place]
        place += 1
        modes.append(module.training)
        for member in module._parameters.values():
            if member is not None:
                parameters.append((<uintptr_t><PyObject *>member, member.requires_grad))
        for member in module._buffers.values():
            if member is not None:
                buffers.append(<uintptr_t><PyObject *>member)
        for member in module._modules.values():
            if member is not None and <uintptr_t><PyObject *>member not in known:
                known.add(<uintptr_t><PyObject *>member)
                found.append(member)
    return tuple(modes), tuple(parameters), tuple(buffers)
