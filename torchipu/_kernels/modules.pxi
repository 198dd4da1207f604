# What a model is made of, asked for before each call: walking it in Python takes as long as a small program runs.

cdef extern from *:
    void __builtin_prefetch(const void *address) nogil

cdef extern from "Python.h":
    ctypedef struct PyDictObject:
        void *ma_keys
        void *ma_values

cdef extern from "Python.h":
    object PyObject_GenericGetDict(object holder, void *context)
    PyObject *PyDict_GetItemWithError(object table, object key) except? NULL
    int PyDict_Next(PyObject *table, Py_ssize_t *place, PyObject **key, PyObject **value)
    bint PyDict_Check(PyObject *held)

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


cdef list modules_of(model):
    """Return a model's modules, each once, in the order of a walk by breadth."""
    cdef list found = [model]
    cdef set known = {<uintptr_t><PyObject *>model}
    for module in found:
        for member in module._modules.values():
            if member is not None and <uintptr_t><PyObject *>member not in known:
                known.add(<uintptr_t><PyObject *>member)
                found.append(member)
    return found


def members_of(model):
    """Return what a model is made of, such that equal answers mean the same modules' members in the same modes.

    Args:
        model: A ``torch.nn.Module``.

    Returns:
        Whether each module trains, in the order in which a walk by breadth meets them, each once; identity of each
        parameter and whether it asks for gradients; identity of each buffer.
    """
    cdef list modes = [], parameters = [], buffers = []
    for module in modules_of(model):
        modes.append(module.training)
        for member in module._parameters.values():
            if member is not None:
                parameters.append((<uintptr_t><PyObject *>member, member.requires_grad))
        for member in module._buffers.values():
            if member is not None:
                buffers.append(<uintptr_t><PyObject *>member)
    return tuple(modes), tuple(parameters), tuple(buffers)


cdef enum Walk:
    RECORDS, COMPARES


cdef class ModelMembers:
    """What a model is made of, kept so that asking whether that still holds makes no objects.

    The members of each module are one row of numbers: the mode, the parameters with whether they ask for gradients in
    the lowest bit, a 0, the buffers, a 0, and the modules.

    Args:
        model: A ``torch.nn.Module``.

    Attributes:
        found: What :func:`members_of` says of it.
    """

    cdef readonly tuple found
    cdef object model
    cdef list modules  # by their addresses, in the order of the walk, the model first
    cdef uintptr_t *row
    cdef Py_ssize_t count, room, place
    cdef bint has_plain_modules

    def __cinit__(self, model):
        self.model = model
        self.record()

    def __dealloc__(self):
        free(self.row)

    def are_same(self):
        """Return whether the model is made of the same, in the same modes."""
        if self.has_plain_modules and self.walk(COMPARES):
            return True
        if members_of(self.model) != self.found:
            return False
        self.record()  # the same through other dictionaries
        return True

    cdef record(self):
        self.found = members_of(self.model)
        self.modules = [<uintptr_t><PyObject *>module for module in modules_of(self.model)]
        self.count = 0
        self.has_plain_modules = self.walk(RECORDS)

    cdef bint walk(self, Walk kind) except -1:
        """Go through all modules; whether all was as recorded, or could be recorded.

        A module is looked at once those before it are as they were: one of them holds it, so that it is alive.
        """
        cdef uintptr_t module
        self.place = 0
        for module in self.modules:
            if not self.look_at(<object><PyObject *>module, kind):
                return False
        return True

    cdef bint look_at(self, module, Walk kind) except -1:
        cdef PyObject *mode
        attributes = PyObject_GenericGetDict(module, NULL)
        mode = PyDict_GetItemWithError(attributes, "training")
        return (
            mode != NULL and self.meet(<uintptr_t>mode, kind)
            and self.look_through(PyDict_GetItemWithError(attributes, "_parameters"), True, kind)
            and self.look_through(PyDict_GetItemWithError(attributes, "_buffers"), False, kind)
            and self.look_through(PyDict_GetItemWithError(attributes, "_modules"), False, kind)
        )

    cdef bint look_through(self, PyObject *table, bint are_parameters, Walk kind) except -1:
        cdef Py_ssize_t place = 0
        cdef PyObject *key
        cdef PyObject *member
        cdef uintptr_t met
        if table == NULL or not PyDict_Check(table):
            return False
        while PyDict_Next(table, &place, &key, &member):
            if member == <PyObject *>None:
                continue
            met = <uintptr_t>member
            if are_parameters and (<object>member).requires_grad:
                met |= 1
            if not self.meet(met, kind):
                return False
        return self.meet(0, kind)

    cdef bint meet(self, uintptr_t number, Walk kind) except -1:
        """Compare, or record, the next number of the row."""
        cdef uintptr_t *row
        if kind == COMPARES:
            self.place += 1
            return self.place <= self.count and self.row[self.place - 1] == number
        if self.count == self.room:
            row = <uintptr_t *>realloc(self.row, (2 * self.room + 64) * sizeof(uintptr_t))
            if not row:
                raise MemoryError
            self.row, self.room = row, 2 * self.room + 64
        self.row[self.count] = number
        self.count += 1
        return True
