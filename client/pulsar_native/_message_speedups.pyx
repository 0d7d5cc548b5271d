# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=True
"""`_message_fields`, compiled; optional, and with the same behaviour.

Rules: offsets come from the decoder, which has compared them with the body; slices are limited to it all the same. The
type takes no part in garbage collection: a message refers to its entry and to numbers, and nothing refers back.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE

from pulsar_native.message_id import MessageId

_new_id = MessageId.__new__

cdef extern from "Python.h":
    ctypedef struct PyTypeObject:
        object (*tp_new)(PyTypeObject*, object, void*)
    void PyObject_GC_UnTrack(void*)


@cython.no_gc
cdef class MessageFields:
    """Entry of a message, its index there and its offsets in the body."""

    cdef readonly object entry
    cdef readonly Py_ssize_t batch_index
    cdef readonly Py_ssize_t _meta_start, _start, _end
    # The message's own fields, once they were read.
    cdef object _fields

    def __init__(self, entry, Py_ssize_t batch_index, Py_ssize_t meta_start, Py_ssize_t start, Py_ssize_t end):
        self.entry = entry
        self.batch_index = batch_index
        self._meta_start = meta_start
        self._start = start
        self._end = end

    def data(self):
        """Return the payload as published, decompressed; b"" for a null value."""
        body = self.entry.body
        cdef Py_ssize_t start = self._start, end = self._end
        if type(body) is not bytes or not 0 <= start <= end <= PyBytes_GET_SIZE(body):
            return body[start:end]
        return PyBytes_FromStringAndSize(PyBytes_AS_STRING(body) + start, end - start)

    def message_id(self):
        """Return the message id: topic, ledger, entry, partition and batch index."""
        entry = self.entry
        made = _new_id(MessageId)
        made._partition = entry.partition
        made._ledger_id = entry.ledger_id
        made._entry_id = entry.entry_id
        made._batch_index = self.batch_index
        made._batch_size = entry.batch_size if entry.is_batch else 0
        made._topic = entry.topic
        made._first_chunk = entry.first_chunk
        return made

    def _single(self):
        """Return the message's own fields, read at the first call."""
        fields = self._fields
        if fields is None:
            fields = self._fields = self.entry.fields(self._meta_start, self._start)
        return fields

    def __len__(self):
        return self._end - self._start


cdef inline MessageFields _make(
    type kind, tuple nothing, object entry, Py_ssize_t index, Py_ssize_t meta_start, Py_ssize_t start, Py_ssize_t end
):
    cdef MessageFields made = <MessageFields>(<PyTypeObject*>kind).tp_new(<PyTypeObject*>kind, nothing, NULL)
    # Of a subclass in Python every instance is tracked.
    PyObject_GC_UnTrack(<void*>made)
    made.entry = entry
    made.batch_index = index
    made._meta_start = meta_start
    made._start = start
    made._end = end
    return made


cdef _check(type kind):
    if not issubclass(kind, MessageFields):
        raise TypeError(f"{kind.__name__} is no kind of message")


def make_messages(type kind not None, entry, Py_ssize_t first, Py_ssize_t stop, places):
    """As `_message_fields.make_messages`."""
    _check(kind)
    cdef list made = []
    cdef tuple nothing = ()
    cdef Py_ssize_t index = first
    for meta_start, start, end in places:
        made.append(_make(kind, nothing, entry, index, meta_start, start, end))
        index += 1
    if index != stop:
        raise ValueError(f"There are places of {index - first} messages, not of {stop - first}")
    return made


def make_uniform_messages(
    type kind not None, entry, Py_ssize_t first, Py_ssize_t stop, Py_ssize_t size, Py_ssize_t length
):
    """As `_message_fields.make_uniform_messages`."""
    _check(kind)
    cdef list made = []
    cdef tuple nothing = ()
    cdef Py_ssize_t index, stride = 4 + size + length, at
    for index in range(first, stop):
        at = index * stride
        made.append(_make(kind, nothing, entry, index, at + 4, at + 4 + size, at + stride))
    return made


def take_runs(messages, Py_ssize_t count):
    """As `_message_fields.take_runs`."""
    cdef list runs = [], indexes = None
    cdef MessageFields message
    cdef object entry = None, take = messages.popleft
    cdef Py_ssize_t number = 0, first = 0, left
    for left in range(count):
        message = <MessageFields?>take()
        if message.entry is entry and number:
            if indexes is None and message.batch_index != first + number:
                indexes = list(range(first, first + number))
            if indexes is not None:
                indexes.append(message.batch_index)
            number += 1
            continue
        if number:
            runs.append((entry, first, number, indexes))
        entry, first, number, indexes = message.entry, message.batch_index, 1, None
    if number:
        runs.append((entry, first, number, indexes))
    return runs
