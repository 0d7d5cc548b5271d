# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=True
"""`_message_fields` and the usual steps of both APIs, compiled; optional, and with the same behaviour.

Rules: offsets come from the decoder, which has compared them with the body; slices are limited to it all the same. The
types of messages and the ids made here take no part in garbage collection: a message refers to its entry and to
numbers, an entry to what was decoded, an id to numbers, its topic and another id, and nothing refers back.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.ref cimport Py_INCREF
from libc.stdint cimport int32_t
from libc.string cimport memchr

from asyncio import _get_running_loop
from collections import deque
from types import MemberDescriptorType

from pulsar_native._callback_errors import callback_errors
from pulsar_native.message_id import MessageId

cdef extern from "Python.h":
    ctypedef struct PyTypeObject:
        object (*tp_new)(PyTypeObject*, object, void*)
    ctypedef struct PyMemberDef:
        Py_ssize_t offset
    ctypedef struct PyMemberDescrObject:
        PyMemberDef* d_member
    void PyObject_GC_UnTrack(void*)
    bint PyObject_IS_GC(object)


cdef inline _untrack(object made):
    # Of a subclass in Python every instance is tracked.
    if PyObject_IS_GC(made):
        PyObject_GC_UnTrack(<void*>made)


cdef inline tuple _untracked(tuple made):
    """Return a tuple of a message to send: the collector would look at each of thousands that are pending."""
    PyObject_GC_UnTrack(<void*>made)
    return made


# ---- ids -------------------------------------------------------------------------------------------------------------

# Where the slots of `MessageId` lie: an id is made of every message that is asked for it, and to set seven attributes
# takes longer than all else.
cdef Py_ssize_t _PARTITION = _slot("_partition"), _LEDGER_ID = _slot("_ledger_id"), _ENTRY_ID = _slot("_entry_id")
cdef Py_ssize_t _BATCH_INDEX = _slot("_batch_index"), _BATCH_SIZE = _slot("_batch_size"), _TOPIC = _slot("_topic")
cdef Py_ssize_t _FIRST_CHUNK = _slot("_first_chunk")
cdef type _ID = MessageId
cdef tuple _NOTHING = ()


cdef Py_ssize_t _slot(str name) except -1:
    """Return the offset of a slot of `MessageId`."""
    member = MessageId.__dict__[name]
    if type(member) is not MemberDescriptorType:
        raise ImportError(f"MessageId.{name} is no slot")
    return (<PyMemberDescrObject*>member).d_member.offset


cdef inline _set(object made, Py_ssize_t slot, object value):
    """Set a slot that was never set."""
    Py_INCREF(value)
    (<void**>(<char*><void*>made + slot))[0] = <void*>value


cdef _message_id(
    object partition, object ledger_id, object entry_id, Py_ssize_t index, Py_ssize_t size, object topic, object first
):
    """Return an id of numbers that need no check."""
    made = (<PyTypeObject*>_ID).tp_new(<PyTypeObject*>_ID, _NOTHING, NULL)
    _untrack(made)
    _set(made, _PARTITION, partition)
    _set(made, _LEDGER_ID, ledger_id)
    _set(made, _ENTRY_ID, entry_id)
    _set(made, _BATCH_INDEX, index)
    _set(made, _BATCH_SIZE, size)
    _set(made, _TOPIC, topic)
    _set(made, _FIRST_CHUNK, first)
    return made


# ---- messages --------------------------------------------------------------------------------------------------------


cdef inline _text(object field):
    """As `_message_fields.text_of`."""
    return field.decode("utf-8", "replace") if type(field) is bytes else field


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
        cdef EntryFields own
        entry = self.entry
        if isinstance(entry, EntryFields):
            own = <EntryFields>entry
            return _message_id(
                own.partition, own.ledger_id, own.entry_id, self.batch_index, own.batch_size if own.is_batch else 0,
                own.topic, own.first_chunk,
            )
        return _message_id(
            entry.partition, entry.ledger_id, entry.entry_id, self.batch_index,
            entry.batch_size if entry.is_batch else 0, entry.topic, entry.first_chunk,
        )

    def properties(self):
        """Return the application's properties, invalid UTF-8 replaced; for a repeated key its last value."""
        cdef dict found
        pairs = self._own().properties
        if type(pairs) is dict:
            return dict(pairs)
        found = {}
        for pair in pairs:
            found[_text(pair.key)] = _text(pair.value)
        return found

    def partition_key(self):
        """Return the key, "" if there is none; a bytes key as base64 text, as in the other clients.

        Invalid UTF-8 is replaced; `key_bytes()` returns such a key as published.
        """
        return _text(self._own().partition_key)

    def ordering_key(self):
        """Return the ordering key, which Key_Shared subscriptions prefer to the key; "" if there is none."""
        ordering_key = self._own().ordering_key
        return ordering_key.decode("utf-8", "replace") if ordering_key else ""

    def event_timestamp(self):
        """Return the event time that the application set, in milliseconds since 1970; 0 if it set none."""
        return self._own().event_time

    def publish_timestamp(self):
        """Return the publish time of the entry by the producer's clock, in milliseconds since 1970."""
        return self.entry.publish_time

    def topic_name(self):
        """Return the full name of the topic, or partition, of the message."""
        return self.entry.topic

    def redelivery_count(self):
        """Return the number of redeliveries (Shared and Key_Shared only)."""
        return self.entry.redelivery_count

    def _single(self):
        """Return the message's own fields, read at the first call."""
        return self._own()

    cdef object _own(self):
        fields = self._fields
        if fields is None:
            fields = self._fields = self.entry.fields(self._meta_start, self._start)
        return fields

    def _may_be_null(self):
        """As `_message_fields.MessageFields._may_be_null`."""
        cdef Py_ssize_t start = self._meta_start, stop = self._start
        body = self.entry.body
        if type(body) is not bytes or not 0 <= start < stop <= PyBytes_GET_SIZE(body):
            return True
        return memchr(PyBytes_AS_STRING(body) + start, 0x48, <size_t>(stop - start)) != NULL

    def __len__(self):
        return self._end - self._start


@cython.no_gc
cdef class DeliveryFields:
    """Ids, redelivery count, ack set and undecoded payload of a MESSAGE command."""

    cdef readonly object ledger_id, entry_id, redelivery_count, ack_words, payload
    cdef readonly Py_ssize_t attachment, epoch

    def __init__(self, message, payload, Py_ssize_t attachment, Py_ssize_t epoch=0):
        data = message.message_id
        self.ledger_id = data.ledgerId
        self.entry_id = data.entryId
        self.redelivery_count = message.redelivery_count
        words = message.ack_set
        self.ack_words = tuple(words) if words else None
        self.payload = payload
        self.attachment = attachment
        self.epoch = epoch
        _untrack(self)


def make_deliveries(type kind not None, list frames not None, Py_ssize_t attachment):
    """As `_message_fields.make_deliveries`."""
    if not issubclass(kind, DeliveryFields):
        raise TypeError(f"{kind.__name__} is no kind of delivery")
    cdef list deliveries = []
    cdef tuple nothing = ()
    cdef DeliveryFields made
    for frame in frames:
        if not isinstance(frame, tuple):
            raise TypeError("A frame is a tuple")
        message = (<tuple>frame)[0].message
        data = message.message_id
        made = <DeliveryFields>(<PyTypeObject*>kind).tp_new(<PyTypeObject*>kind, nothing, NULL)
        _untrack(made)
        made.ledger_id = data.ledgerId
        made.entry_id = data.entryId
        made.redelivery_count = message.redelivery_count
        words = message.ack_set
        made.ack_words = tuple(words) if words else None
        made.payload = (<tuple>frame)[1]
        made.attachment = attachment
        deliveries.append(made)
    return deliveries


@cython.no_gc
cdef class EntryFields:
    """Attributes of a decoded entry. The body of `parsed` is released: it would keep the received payload."""

    cdef public object parsed, body, ledger_id, entry_id, redelivery_count, topic, partition, schema, publish_time
    cdef public object first_chunk
    cdef public bint is_batch, decryption_failed
    cdef public Py_ssize_t batch_size

    def __init__(self, parsed, body, DeliveryFields delivery not None, *, topic, partition, schema):
        parsed.body = b""
        self._fill(parsed, body, delivery, parsed.is_batch, topic, partition, schema)
        if self.is_batch:
            self.batch_size = parsed.num_messages

    cdef _fill(self, parsed, body, DeliveryFields delivery, bint is_batch, topic, partition, schema):
        self.parsed = parsed
        self.body = body
        self.ledger_id = delivery.ledger_id
        self.entry_id = delivery.entry_id
        self.redelivery_count = delivery.redelivery_count
        self.topic = topic
        self.partition = partition
        self.schema = schema
        self.publish_time = parsed.publish_time
        self.is_batch = is_batch
        _untrack(self)


cdef class SingleEntryDecoder:
    """As `_message_fields.SingleEntryDecoder`."""

    cdef object parse, place_of, topic, partition, schema
    cdef type entry_kind, kind
    cdef tuple nothing

    def __init__(self, parse, place_of, type entry_kind not None, type kind not None, topic, partition, schema):
        _check(kind)
        if not issubclass(entry_kind, EntryFields):
            raise TypeError(f"{entry_kind.__name__} is no kind of entry")
        self.parse, self.place_of, self.entry_kind, self.kind = parse, place_of, entry_kind, kind
        self.topic, self.partition, self.schema = topic, partition, schema
        self.nothing = ()

    def decode(
        self,
        deliveries,
        Py_ssize_t attachment,
        Py_ssize_t epoch,
        tuple after not None,
        dict complete not None,
        Py_ssize_t most,
        Py_ssize_t most_bytes,
    ):
        """As `_message_fields.SingleEntryDecoder.decode`."""
        cdef list messages = []
        cdef DeliveryFields delivery
        cdef EntryFields entry
        cdef Py_ssize_t index, meta_start, start, end
        cdef bint is_batch
        take = deliveries.popleft
        while deliveries and len(messages) < most and most_bytes > 0:
            delivery = <DeliveryFields?>deliveries[0]
            if delivery.attachment != attachment or delivery.epoch != epoch or delivery.ack_words is not None:
                break
            key = (delivery.ledger_id, delivery.entry_id)
            if key <= after or key in complete:
                break
            parsed = self.parse(delivery.payload, True)
            if parsed is None or parsed.num_messages != 1 or parsed.compression:
                break
            if parsed.is_encrypted or parsed.is_chunk or parsed.is_compacted:
                break
            body = parsed.body
            if type(body) is not bytes:
                body = bytes(body)
                parsed.body = b""
            is_batch = parsed.is_batch
            meta_start, start, end = 0, 0, PyBytes_GET_SIZE(body)
            if is_batch:
                place = self.place_of(body)
                if place is None:
                    break
                meta_start, start, end = place
            take()
            after = key
            entry = <EntryFields>(<PyTypeObject*>self.entry_kind).tp_new(
                <PyTypeObject*>self.entry_kind, self.nothing, NULL
            )
            entry._fill(parsed, body, delivery, is_batch, self.topic, self.partition, self.schema)
            index = -1
            if is_batch:
                entry.batch_size, index = 1, 0
            messages.append(_make(self.kind, self.nothing, entry, index, meta_start, start, end))
            most_bytes -= end - start
        return messages


cdef inline MessageFields _make(
    type kind, tuple nothing, object entry, Py_ssize_t index, Py_ssize_t meta_start, Py_ssize_t start, Py_ssize_t end
):
    cdef MessageFields made = <MessageFields>(<PyTypeObject*>kind).tp_new(<PyTypeObject*>kind, nothing, NULL)
    _untrack(made)
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


# ---- queues ----------------------------------------------------------------------------------------------------------
#
# Each method is one atomic step: under the GIL since nothing that may run other Python code comes between reading and
# writing the state (creating an object may, by way of garbage collection), without the GIL by a critical section.


cdef inline Py_ssize_t _length_of(object places, Py_ssize_t length, Py_ssize_t index) except? -1:
    """Return the payload bytes of a message of an entry, whose places are packed, or a list, or None for one length."""
    cdef const int32_t* place
    if type(places) is bytes:
        place = <const int32_t*>PyBytes_AS_STRING(places) + 3 * index
        return place[2] - place[1]
    if places is None:
        return length
    _, start, end = places[index]
    return end - start


cdef class MessageQueue:
    """Queue of received messages, of one entry, which are made on dequeue, or made before."""

    # Messages of an entry from `next` to `stop`; with `places`, or all of one size.
    cdef object entry
    cdef type kind
    # A list, packed bytes, or None.
    cdef object places
    cdef Py_ssize_t next, stop, size, length
    # Messages made before, behind these.
    cdef object made
    cdef tuple nothing

    def __init__(self, messages=()):
        self.made = deque(messages)
        self.nothing = ()

    def __len__(self):
        return self.stop - self.next + len(self.made)

    def extend(self, messages):
        """Add messages."""
        self.made.extend(messages)

    def extend_places(self, type kind not None, entry, Py_ssize_t first, Py_ssize_t stop, list places not None):
        """As `_message_fields.MessageQueue.extend_places`."""
        _check(kind)
        if not 0 <= first <= stop <= len(places):
            raise ValueError(f"There are places of {len(places)} messages, not of {stop}")
        self._extend(kind, entry, first, stop, places, 0, 0)

    def extend_packed(self, type kind not None, entry, Py_ssize_t first, Py_ssize_t stop, bytes packed not None):
        """As `_message_fields.MessageQueue.extend_packed`."""
        _check(kind)
        if not 0 <= first <= stop <= len(packed) // 12:
            raise ValueError(f"There are places of {len(packed) // 12} messages, not of {stop}")
        self._extend(kind, entry, first, stop, packed, 0, 0)

    def extend_uniform(
        self, type kind not None, entry, Py_ssize_t first, Py_ssize_t stop, Py_ssize_t size, Py_ssize_t length
    ):
        """As `_message_fields.MessageQueue.extend_uniform`."""
        _check(kind)
        self._extend(kind, entry, first, stop, None, size, length)

    cdef _extend(
        self,
        type kind,
        object entry,
        Py_ssize_t first,
        Py_ssize_t stop,
        object places,
        Py_ssize_t size,
        Py_ssize_t length,
    ):
        cdef Py_ssize_t index
        if first >= stop:
            return
        if self.next < self.stop or self.made:
            if places is None:
                self.made.extend(make_uniform_messages(kind, entry, first, stop, size, length))
            else:
                self.made.extend(self._at(index, kind, entry, places, 0, 0) for index in range(first, stop))
            return
        with cython.critical_section(self):
            self.kind, self.entry, self.places = kind, entry, places
            self.size, self.length = size, length
            self.next = first
            # Last: from here on the messages are in the queue.
            self.stop = stop

    cdef MessageFields _at(
        self, Py_ssize_t index, type kind, object entry, object places, Py_ssize_t size, Py_ssize_t length
    ):
        cdef Py_ssize_t at
        cdef const int32_t* place
        if type(places) is bytes:
            place = <const int32_t*>PyBytes_AS_STRING(places) + 3 * index
            return _make(kind, self.nothing, entry, index, place[0], place[1], place[2])
        if places is None:
            at = index * (4 + size + length) + 4
            return _make(kind, self.nothing, entry, index, at, at + size, at + size + length)
        meta_start, start, end = places[index]
        return _make(kind, self.nothing, entry, index, meta_start, start, end)

    cdef MessageFields _take(self):
        """Return the first message of the entry, None when there is none."""
        cdef Py_ssize_t index, size, length
        cdef type kind
        cdef object entry, places
        with cython.critical_section(self):
            if self.next >= self.stop:
                return None
            index = self.next
            kind, entry, places, size, length = self.kind, self.entry, self.places, self.size, self.length
            self.next = index + 1
        if index + 1 == self.stop:
            self._release()
        return self._at(index, kind, entry, places, size, length)

    cdef _release(self):
        """Drop the references of an entry without messages."""
        with cython.critical_section(self):
            if self.next >= self.stop:
                self.entry, self.places = None, None

    def popleft(self):
        """Remove and return the first message."""
        message = self._take()
        return self.made.popleft() if message is None else message

    def pop(self):
        """Remove and return the last message."""
        cdef Py_ssize_t index, size, length
        cdef type kind
        cdef object entry, places
        if self.made:
            return self.made.pop()
        with cython.critical_section(self):
            if self.next >= self.stop:
                raise IndexError("pop from an empty queue")
            index = self.stop - 1
            kind, entry, places, size, length = self.kind, self.entry, self.places, self.size, self.length
            self.stop = index
        if index == self.next:
            self._release()
        return self._at(index, kind, entry, places, size, length)

    def clear(self):
        """Remove all messages."""
        with cython.critical_section(self):
            self.next = self.stop = 0
        self._release()
        self.made.clear()

    def first_size(self):
        """As `_message_fields.MessageQueue.first_size`."""
        cdef MessageFields message
        with cython.critical_section(self):
            if self.next < self.stop:
                return _length_of(self.places, self.length, self.next)
        try:
            message = self.made[0]
        except IndexError:
            return -1
        return message._end - message._start

    def drain_to(self, list messages not None, Py_ssize_t count, Py_ssize_t most):
        """As `_message_fields.MessageQueue.drain_to`."""
        cdef MessageFields message
        cdef Py_ssize_t left = most, first, index, stop, size, length, each
        cdef type kind
        cdef object entry, places, take
        cdef bint is_last
        with cython.critical_section(self):
            # Messages that others dequeue concurrently are before or behind these.
            first = index = self.next
            stop = self.stop if self.stop - first <= count else first + count
            kind, entry, places, size, length = self.kind, self.entry, self.places, self.size, self.length
            while index < stop:
                each = _length_of(places, length, index)
                if each > left:
                    break
                left -= each
                index += 1
            if index > first:
                self.next = index
            is_last = index >= self.stop
        if index > first:
            if is_last:
                self._release()
            stop = index
            for index in range(first, stop):
                messages.append(self._at(index, kind, entry, places, size, length))
        if not is_last or not self.made:
            return most - left
        made, take = self.made, self.made.popleft
        for index in range(count - (stop - first) if stop > first else count):
            try:
                message = made[0]
                if message._end - message._start > left:
                    break
                message = take()
            except IndexError:
                break
            messages.append(message)
            left -= message._end - message._start
        return most - left


@cython.no_gc
cdef class _Run:
    """Consecutive messages of one entry. No tuple: the garbage collector would look at each."""

    cdef object entry
    cdef Py_ssize_t first, number


cdef _Run _run(object entry, Py_ssize_t first, Py_ssize_t number):
    cdef _Run made = _Run.__new__(_Run)
    made.entry, made.first, made.number = entry, first, number
    return made


cdef bint _add_whole(
    dict complete, object partial, object entry, Py_ssize_t first, Py_ssize_t number, list indexes
) except -1:
    """Add an entry to `complete` if all its messages are acknowledged and it is not in `partial`; return whether."""
    cdef Py_ssize_t size
    if complete is None:
        return False
    size = (<EntryFields>entry).batch_size if isinstance(entry, EntryFields) else entry.batch_size
    if first >= 0 and (first > 0 or indexes is not None or number != size):
        return False
    if isinstance(entry, EntryFields):
        key = ((<EntryFields>entry).ledger_id, (<EntryFields>entry).entry_id)
    else:
        key = (entry.ledger_id, entry.entry_id)
    if key in partial:
        return False
    complete.setdefault(key, size or 1)
    return True


cdef class PendingAcks:
    """As `_message_fields.PendingAcks`, as runs of one entry."""

    cdef public bint is_open
    cdef object on_closed
    cdef list runs
    # Number of messages in the runs, and the run that may go on.
    cdef Py_ssize_t count
    cdef object entry
    cdef Py_ssize_t first, number

    def __init__(self, on_closed):
        self.on_closed = on_closed
        self.runs = []

    def __len__(self):
        return self.count + self.number

    def add(self, MessageFields message not None):
        """As `_message_fields.PendingAcks.add`."""
        self._add(message)

    cdef _add(self, MessageFields message):
        self._append(message)
        # After the message, as there.
        if not self.is_open:
            self.on_closed(message)

    cdef _append(self, MessageFields message):
        cdef object entry
        cdef Py_ssize_t first, number
        with cython.critical_section(self):
            if message.entry is self.entry and message.batch_index == self.first + self.number:
                self.number += 1
                return
            # Order of events: the new run first, since creating an object may let another thread append or take. The
            # order of the runs has no meaning.
            entry, first, number = self.entry, self.first, self.number
            self.entry, self.first, self.number = message.entry, message.batch_index, 1
        if number:
            self._keep(_run(entry, first, number))

    cdef _keep(self, _Run run):
        with cython.critical_section(self):
            self.runs.append(run)
            self.count += run.number

    cdef list _take_all(self):
        cdef list fresh = [], runs
        cdef object entry
        cdef Py_ssize_t first, number
        with cython.critical_section(self):
            runs, self.runs = self.runs, fresh
            entry, first, number = self.entry, self.first, self.number
            self.entry, self.number, self.count = None, 0, 0
        if number:
            runs.append(_run(entry, first, number))
        return runs

    def take_runs(self):
        """As `_message_fields.PendingAcks.take_runs`."""
        return self._take_parts(None, None)

    def take_parts(self, dict complete not None, partial not None):
        """As `_message_fields.PendingAcks.take_parts`."""
        return self._take_parts(complete, partial)

    cdef list _take_parts(self, dict complete, object partial):
        cdef list merged = [], indexes = None
        cdef _Run run
        cdef object entry = None
        cdef Py_ssize_t start = 0, total = 0
        for run in self._take_all():
            if run.entry is entry:
                if indexes is None:
                    indexes = list(range(start, start + total))
                indexes.extend(range(run.first, run.first + run.number))
                total += run.number
                continue
            if total and not _add_whole(complete, partial, entry, start, total, indexes):
                merged.append((entry, start, total, indexes))
            entry, start, total, indexes = run.entry, run.first, run.number, None
        if total and not _add_whole(complete, partial, entry, start, total, indexes):
            merged.append((entry, start, total, indexes))
        return merged

    def remove(self, MessageFields message not None):
        """Remove a message that was added; raises ValueError when it is not there."""
        cdef list kept = []
        cdef bint found = False
        cdef _Run run
        cdef Py_ssize_t stop, index = message.batch_index
        for run in self._take_all():
            stop = run.first + run.number
            if found or run.entry is not message.entry or not run.first <= index < stop:
                kept.append(run)
                continue
            found = True
            kept.append(_run(run.entry, run.first, index - run.first))
            kept.append(_run(run.entry, index + 1, stop - index - 1))
        for run in kept:
            if run.number:
                self._keep(run)
        if not found:
            raise ValueError("The message is not there")

    def clear(self):
        """Remove all messages."""
        self._take_all()


cdef class FastPathBuffer:
    """As `_message_fields.FastPathBuffer`."""

    cdef readonly list items
    cdef public Py_ssize_t capacity, max_payload
    cdef public bint is_open, has_tuples

    def __init__(self):
        self.items = []

    def close(self):
        """As `_message_fields.FastPathBuffer.close`."""
        self.capacity = 0
        self.is_open = False

    def drain(self):
        """As `_message_fields.FastPathBuffer.drain`."""
        cdef list taken = self.items[:], payloads, callbacks, fields
        cdef Py_ssize_t size = 0
        del self.items[:len(taken)]
        if not self.has_tuples:
            for item in taken:
                size += len(<bytes?>item)
            return taken, None, None, size
        payloads, callbacks, fields = [], [], []
        for item in taken:
            if type(item) is tuple:
                payloads.append((<tuple>item)[0])
                size += len(<bytes?>(<tuple>item)[0])
                callbacks.append((<tuple>item)[1])
                fields.append((<tuple>item)[2])
            else:
                payloads.append(item)
                size += len(<bytes?>item)
                callbacks.append(None)
                fields.append(b"")
        return payloads, callbacks, fields, size

    cdef int _add(self, bytes payload, object callback, bytes fields) except -1:
        """Add a message; return 1, 2 if the owner must process it as a late one, 0 if it does not fit."""
        if len(self.items) >= self.capacity or len(payload) + len(fields) > self.max_payload:
            return 0
        if callback is None and not fields:
            self.items.append(payload)
        else:
            self.has_tuples = True
            self.items.append(_untracked((payload, callback, fields)))
        # After the message, as there.
        return 1 if self.is_open else 2


def call_back(callbacks, tuple outcome not None, tuple place, topic, unstored, failed):
    """As `_message_fields.call_back`."""
    cdef object error = outcome[0], result = outcome[1], message_id = None
    cdef Py_ssize_t index = -1, count = len(callbacks)
    if place is not None:
        partition, ledger_id, entry_id = place
    for callback in callbacks:
        index += 1
        if callback is None:
            continue
        if place is not None:
            message_id = _message_id(partition, ledger_id, entry_id, index, count, topic, None)
        try:
            if type(callback) is tuple:
                (<tuple>callback)[0](result, unstored if message_id is None else message_id)
            else:
                callback(error, message_id)
        except callback_errors():
            failed()


# ---- methods of the APIs ---------------------------------------------------------------------------------------------
#
# `_message_fields.compiled_form` gives them to the classes; `__wrapped__` is the method in Python.


cdef inline MessageFields _prefetched(object api, object timeout_millis):
    """Return the next prefetched message; None where the method in Python is needed."""
    cdef MessageFields message
    queue = api._prefetched
    if type(queue) is not MessageQueue or not (timeout_millis is None or type(timeout_millis) is int):
        return None
    message = (<MessageQueue>queue)._take()
    if message is None and (<MessageQueue>queue).made:
        try:
            return (<MessageQueue>queue).made.popleft()
        except IndexError:
            # Another thread dequeued the last one.
            return None
    return message


def receive(self, timeout_millis=None):
    """As `sync.Consumer.receive`."""
    message = _prefetched(self, timeout_millis)
    return receive.__wrapped__(self, timeout_millis) if message is None else message


def read_next(self, timeout_millis=None):
    """As `sync.Reader.read_next`."""
    message = _prefetched(self, timeout_millis)
    return read_next.__wrapped__(self, timeout_millis) if message is None else message


def acknowledge(self, message, *, txn=None):
    """As `sync.Consumer.acknowledge`."""
    if txn is None and isinstance(message, MessageFields) and (<MessageFields>message).entry is not None:
        pending = (<dict?>self._fast_acks).get((<MessageFields>message).entry.topic)
        if pending is not None:
            (<PendingAcks?>pending)._add(<MessageFields>message)
            return None
    return acknowledge.__wrapped__(self, message, txn=txn)


def send_async(
    self,
    content,
    callback,
    properties=None,
    partition_key=None,
    ordering_key=None,
    sequence_id=None,
    replication_clusters=None,
    disable_replication=False,
    event_timestamp=None,
    deliver_at=None,
    deliver_after=None,
    schema=None,
    txn=None,
):
    """As `sync.Producer.send_async`."""
    cdef object rest = content
    if (
        content is not None and disable_replication is False and sequence_id is None and schema is None
        and replication_clusters is None and deliver_at is None and deliver_after is None and txn is None
        and (callback is None or callable(callback))
    ):
        rest = _add_usual(
            self, content, None if callback is None else _untracked((callback,)), properties, partition_key,
            ordering_key, event_timestamp,
        )
        if rest is None:
            return None
    return send_async.__wrapped__(
        self, rest, callback, properties, partition_key, ordering_key, sequence_id, replication_clusters,
        disable_replication, event_timestamp, deliver_at, deliver_after, schema, txn,
    )


def send(
    self,
    content,
    properties=None,
    partition_key=None,
    ordering_key=None,
    sequence_id=None,
    replication_clusters=None,
    disable_replication=None,
    event_timestamp=None,
    deliver_at=None,
    deliver_after=None,
    schema=None,
    txn=None,
):
    """As `asyncio.Producer.send`."""
    cdef object rest = content
    if (
        content is not None and disable_replication is None and sequence_id is None and schema is None
        and replication_clusters is None and deliver_at is None and deliver_after is None and txn is None
        and _get_running_loop() is self._loop
    ):
        future = self._new_future()
        rest = _add_usual(self, content, future, properties, partition_key, ordering_key, event_timestamp)
        if rest is None:
            return future
    return send.__wrapped__(
        self, rest, properties, partition_key, ordering_key, sequence_id, replication_clusters,
        disable_replication, event_timestamp, deliver_at, deliver_after, schema, txn,
    )


cdef object _add_usual(self, content, callback, properties, partition_key, ordering_key, event_timestamp):
    """Add a message that needs no check but those of the buffer and return None.

    For every other one return what the method in Python gets as its content. A content that can be read only once, such
    as a file, must not be encoded again there.
    """
    cdef object fields = b"", payload = content
    cdef int added
    cdef bint is_value = type(content) is not bytes or self._fast_path is None
    cdef FastPathBuffer fast_path = self._value_path if is_value else self._fast_path
    if fast_path is None or len(fast_path.items) >= fast_path.capacity or self._process.is_over:
        return content
    if not (properties is None and partition_key is None and ordering_key is None and event_timestamp is None):
        try:
            fields = self._usual_fields(properties, partition_key, ordering_key, event_timestamp)
        except Exception:
            # Raised again by the method in Python.
            return content
        if fields is None:
            return content
    if is_value:
        try:
            payload = self._schema.encode(content)
        except Exception as error:
            return self._encoded(None, error)
        if type(payload) is not bytes:
            return self._encoded(payload)
    added = fast_path._add(payload, callback, fields)
    if added == 2:
        self._drain_late()
    if added:
        return None
    return self._encoded(payload) if is_value else content
