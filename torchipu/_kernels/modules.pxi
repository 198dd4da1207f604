# What a model is made of, asked for before each call: walking it in Python takes as long as a small program runs.

cdef extern from *:
    void __builtin_prefetch(const void *address) nogil

cdef extern from "Python.h":
    ctypedef struct PyDictObject:
        void *ma_keys
        void *ma_values

cdef int64_t LINE = 64  # bytes of a cache line
cdef int64_t OBJECT_BYTES = 128, TABLE_BYTES = 256, TENSOR_BYTES = 256, STORAGE_BYTES = 128
# Before an object lie what the collector keeps of it and where its attributes are.
cdef int64_t AHEAD_OF_OBJECT = 32


cdef add_lines(set lines, uintptr_t address, int64_t num_bytes):
    """Add the cache lines of some memory."""
    cdef uintptr_t line
    if address:
        for line in range(address // LINE, (address + num_bytes - 1) // LINE + 1):
            lines.add(line)


cdef add_object(set lines, held):
    """Add the lines of an object and, where it is a dictionary, of its tables."""
    cdef PyDictObject *table
    add_lines(lines, <uintptr_t><PyObject *>held - AHEAD_OF_OBJECT, OBJECT_BYTES)
    if isinstance(held, dict):
        table = <PyDictObject *><PyObject *>held
        add_lines(lines, <uintptr_t>table.ma_keys, TABLE_BYTES)
        add_lines(lines, <uintptr_t>table.ma_values, OBJECT_BYTES)


cdef class Footprint:
    """Where a model and its tensors lie, as far as calls look at them: the cache has lost that when a call begins.

    Looked at one after the other, each cache line is waited for. Fetched together they take a fraction of that. What
    has moved since is fetched in vain, which does no harm.

    Args:
        model: A ``torch.nn.Module``.
        tensors: Of torch.
    """

    cdef uintptr_t *lines
    cdef Py_ssize_t count

    def __cinit__(self, model, tensors):
        cdef set lines = set()
        cdef Py_ssize_t place
        for module in model.modules():
            for held in (module, module.__dict__, module._parameters, module._buffers, module._modules):
                add_object(lines, held)
        for tensor in tensors:
            add_object(lines, tensor)
            add_lines(lines, tensor._cdata, TENSOR_BYTES)
            add_lines(lines, tensor.untyped_storage()._cdata, STORAGE_BYTES)
        self.lines = <uintptr_t *>malloc(max(len(lines), 1) * sizeof(uintptr_t))
        if not self.lines:
            raise MemoryError
        self.count = len(lines)
        for place, line in enumerate(sorted(lines)):
            self.lines[place] = line

    def __dealloc__(self):
        free(self.lines)

    def fetch(self):
        """Bring all of it into the cache."""
        cdef Py_ssize_t place
        for place in range(self.count):
            __builtin_prefetch(<const void *>(self.lines[place] * LINE))


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
