# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, freethreading_compatible=True
"""The hot loops of `codec`, `frames`, `entry` and `columns`, compiled; optional (`_impl` selects, they are the reference).

May not do: decide that a batch is malformed. Input that is not ordinary (malformed, hostile, or merely rare) is passed
to the plain Python code, which raises or reads it: the two cannot differ in what they reject.

Rules: bytes come from a peer, so every size is compared with what is left before it is used, and positions only grow; a
number of ten bytes (64 bits and more) counts as not ordinary. Two passes: scan and sum up, then fill memory of the
exact size. No state outside the arguments, and sequences are copied before they are read: safe without the GIL.
"""

import sys
from binascii import a2b_base64

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.long cimport PyLong_AsUnsignedLongLongMask
from cpython.unicode cimport PyUnicode_AsUTF8AndSize, PyUnicode_DecodeUTF8
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcmp, memcpy, memset

from pulsar_native.message_id import MessageId, decode as _decode_id, encode as _encode_id
from pulsar_native.wire import codec
from pulsar_native.wire.checksum import crc32c as _crc32c
from pulsar_native.wire.pulsar_api_pb2 import MessageMetadata

_new = MessageId.__new__
_read_metadata = MessageMetadata.FromString

cdef enum:
    _MAX_BODY = 0x7FFFFFFF  # places are kept in 32 bits
    _MAX_PAIRS = 32  # properties of a message that are compared with each other; more take the general way

# Tags of SingleMessageMetadata: field number << 3 | kind (0 = varint, 2 = bytes).
cdef enum:
    _PROPERTIES = 0x0A
    _PARTITION_KEY = 0x12
    _PAYLOAD_SIZE = 0x18
    _COMPACTED_OUT = 0x20
    _EVENT_TIME = 0x28
    _KEY_IS_BASE64 = 0x30
    _ORDERING_KEY = 0x3A
    _SEQUENCE_ID = 0x40
    _NULL_VALUE = 0x48
    _NULL_KEY = 0x50

cdef uint64_t _MAX_MILLIS = 9223372036854775  # of which Arrow's microseconds can be made

ctypedef const uint8_t* Bytes

cdef extern from "Python.h":
    ctypedef struct PyTypeObject:
        object (*tp_new)(PyTypeObject*, object, void*)
    object PyMemoryView_FromMemory(char*, Py_ssize_t, int)
    const int PyBUF_READ


cdef struct Span:
    uint32_t start
    uint32_t size


cdef struct Pair:
    Span key
    Span value


cdef struct Row:
    Span value
    Span key
    uint32_t pairs  # where the message's properties end among all
    uint8_t has_key
    uint8_t key_is_base64
    uint8_t null_value
    uint64_t event_time
    uint64_t sequence_id


# ---- numbers ---------------------------------------------------------------------------------------------------------


cdef inline Py_ssize_t _varint(Bytes data, Py_ssize_t at, Py_ssize_t stop, uint64_t* value) noexcept nogil:
    """Read a number of at most 63 bits that ends before `stop`; return its end, -1 when there is none."""
    cdef uint64_t found = 0
    cdef int shift = 0
    cdef uint8_t byte
    while at < stop and shift < 63:
        byte = data[at]
        at += 1
        found |= <uint64_t>(byte & 127) << shift
        if byte < 128:
            value[0] = found
            return at
        shift += 7
    return -1


cdef inline Py_ssize_t _span(Bytes data, Py_ssize_t at, Py_ssize_t stop, Span* span) noexcept nogil:
    """Read a size and skip as many bytes; return their end, -1 when that is behind `stop`."""
    cdef uint64_t size = 0
    cdef Py_ssize_t begin = at
    at = _varint(data, at, stop, &size)
    # protobuf's parser refuses sizes of more than five bytes.
    if at < 0 or at - begin > 5 or size > <uint64_t>(stop - at):
        return -1
    span.start = <uint32_t>at
    span.size = <uint32_t>size
    return at + <Py_ssize_t>size


cdef inline uint32_t _big_endian(Bytes data) noexcept nogil:
    """Return the number in the next four bytes."""
    return <uint32_t>data[0] << 24 | <uint32_t>data[1] << 16 | <uint32_t>data[2] << 8 | data[3]


cdef inline Py_ssize_t _metadata(Bytes data, Py_ssize_t at, Py_ssize_t total) noexcept nogil:
    """Return the end of the metadata whose size is at `at`, -1 when that is behind the batch."""
    if total - at < 4:
        return -1
    cdef uint64_t size = _big_endian(data + at)
    return -1 if size > <uint64_t>(total - at - 4) else at + 4 + <Py_ssize_t>size


cdef Py_ssize_t _payload_end(Bytes data, Py_ssize_t at, Py_ssize_t stop, Py_ssize_t total) noexcept nogil:
    """Search the payload's size in the metadata from `at` to `stop`; return the payload's end, or -1."""
    cdef uint64_t value = 0
    cdef Span span
    cdef uint8_t tag
    while at < stop:
        tag = data[at]
        if tag >= 128:
            return -1
        if tag == _PAYLOAD_SIZE:
            at = _varint(data, at + 1, stop, &value)
            return -1 if at < 0 or value > <uint64_t>(total - stop) else stop + <Py_ssize_t>value
        if tag & 7 == 0:
            at = _varint(data, at + 1, stop, &value)
        elif tag & 7 == 2:
            at = _span(data, at + 1, stop, &span)
        else:
            return -1
        if at < 0:
            return -1
    return -1


cdef bint _pair(Bytes data, Span span, Pair* pair) noexcept:
    """Read a KeyValue; return False unless it is just a key and a value, in this order."""
    cdef Py_ssize_t at = span.start, stop = at + span.size
    if at >= stop or data[at] != 0x0A:
        return False
    at = _span(data, at + 1, stop, &pair.key)
    return 0 <= at < stop and data[at] == 0x12 and _span(data, at + 1, stop, &pair.value) == stop


cdef inline int _width(uint64_t value) noexcept nogil:
    cdef int width = 1
    while value > 127:
        value >>= 7
        width += 1
    return width


cdef inline uint8_t* _put(uint8_t* to, uint64_t value) noexcept nogil:
    """Write a protobuf varint; return the position behind it."""
    while value > 127:
        to[0] = <uint8_t>(value | 128)
        to += 1
        value >>= 7
    to[0] = <uint8_t>value
    return to + 1


cdef inline uint8_t* _put_text(uint8_t* to, uint8_t tag, const void* text, Py_ssize_t size) noexcept nogil:
    to[0] = tag
    to = _put(to + 1, <uint64_t>size)
    memcpy(to, text, <size_t>size)
    return to + size


cdef inline Py_ssize_t _text_width(Py_ssize_t size) noexcept nogil:
    """Return the encoded size of a text of `size` bytes, with its tag."""
    return 1 + _width(<uint64_t>size) + size


cdef inline uint8_t* _put_pair(
    uint8_t* to, const char* key, Py_ssize_t key_size, const char* value, Py_ssize_t size
) noexcept nogil:
    """Write a property."""
    to[0] = _PROPERTIES
    to = _put(to + 1, <uint64_t>(_text_width(key_size) + _text_width(size)))
    return _put_text(_put_text(to, 0x0A, key, key_size), 0x12, value, size)


cdef inline uint8_t* _put_flag(uint8_t* to, uint8_t tag) noexcept nogil:
    to[0], to[1] = tag, 1
    return to + 2


# ---- batches ---------------------------------------------------------------------------------------------------------


def split_batch(body, count):
    """As `codec.split_batch`."""
    cdef bytes held = body if type(body) is bytes else bytes(body)
    cdef Bytes data = <Bytes>PyBytes_AS_STRING(held)
    cdef Py_ssize_t total = PyBytes_GET_SIZE(held), position = 0, start, payload, left
    if not 0 < count <= total // 4:
        return codec.split_batch(held, count)
    cdef list places = []
    for left in range(<Py_ssize_t>count):
        start = position + 4
        payload = _metadata(data, position, total)
        position = -1 if payload < 0 else _payload_end(data, start, payload, total)
        if position < 0:
            return codec.split_batch(held, count)
        places.append((start, payload, position))
    return places


cdef class Spans:
    """Offsets of a batch's messages, a sequence as `codec.split_batch` returns it, packed as 32-bit numbers."""

    cdef readonly bytes packed
    cdef readonly Py_ssize_t payload_bytes
    # True if the metadata of any message may have the mark of compaction.
    cdef readonly bint may_be_compacted
    cdef Py_ssize_t count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if isinstance(index, slice):
            return [self._at(each) for each in range(*index.indices(self.count))]
        cdef Py_ssize_t at = index
        if at < 0:
            at += self.count
        if not 0 <= at < self.count:
            raise IndexError("A batch has no message of this index")
        return self._at(at)

    def __iter__(self):
        return iter(self[:])

    cdef tuple _at(self, Py_ssize_t index):
        cdef const int32_t* place = <const int32_t*>PyBytes_AS_STRING(self.packed) + 3 * index
        return place[0], place[1], place[2]


def scan_spans(body, Py_ssize_t count):
    """Return the offsets of a batch's messages; None for what `codec.split_batch` may refuse."""
    if type(body) is not bytes:
        return None
    cdef Bytes data = <Bytes>PyBytes_AS_STRING(body)
    cdef Py_ssize_t total = PyBytes_GET_SIZE(body), position = 0, start, payload, index, at
    if total > _MAX_BODY or not 0 < count <= total // 4:
        return None
    cdef Spans made = Spans()
    made.packed = PyBytes_FromStringAndSize(NULL, count * 3 * sizeof(int32_t))
    made.count = count
    cdef int32_t* place = <int32_t*>PyBytes_AS_STRING(made.packed)
    for index in range(count):
        start = position + 4
        payload = _metadata(data, position, total)
        position = -1 if payload < 0 else _payload_end(data, start, payload, total)
        if position < 0:
            return None
        place[0], place[1], place[2] = <int32_t>start, <int32_t>payload, <int32_t>position
        place += 3
        made.payload_bytes += position - payload
        for at in range(start, payload - 1):
            if data[at] == _COMPACTED_OUT and data[at + 1] == 1:
                made.may_be_compacted = True
    return made


def only_place(body):
    """As `codec.only_place`, but checks the metadata only."""
    if type(body) is not bytes:
        return codec.only_place(body)
    cdef Bytes data = <Bytes>PyBytes_AS_STRING(body)
    cdef Py_ssize_t payload = _metadata(data, 0, PyBytes_GET_SIZE(body))
    cdef Py_ssize_t stop = -1 if payload < 0 else _payload_end(data, 4, payload, PyBytes_GET_SIZE(body))
    cdef Py_ssize_t at
    if stop < 0:
        return None
    for at in range(4, payload - 1):
        if data[at] == _COMPACTED_OUT and data[at + 1] == 1:
            return None
    return 4, payload, stop


def payload_bytes(list places not None):
    """As `codec.payload_bytes`."""
    cdef Py_ssize_t total = 0, start, end
    for _, start, end in places:
        total += end - start
    return total


def may_be_compacted(bytes body not None, list places not None):
    """As `codec.may_be_compacted`, but checks the metadata only."""
    cdef Bytes data = <Bytes>PyBytes_AS_STRING(body)
    cdef Py_ssize_t total = PyBytes_GET_SIZE(body), at, stop
    for at, stop, _ in places:
        if at < 0 or stop > total:
            return True
        while at < stop - 1:
            if data[at] == _COMPACTED_OUT and data[at + 1] == 1:
                return True
            at += 1
    return False


def only_bytes(list values not None):
    """As `codec.only_bytes`."""
    for value in values:
        if type(value) is not bytes:
            return False
    return True


cdef inline int64_t _position(const uint8_t* places, Py_ssize_t index, bint is_wide) noexcept:
    cdef int32_t narrow = 0
    cdef int64_t wide = 0
    if is_wide:
        memcpy(&wide, places + 8 * index, 8)
        return wide
    memcpy(&narrow, places + 4 * index, 4)
    return narrow


def cut_values(const uint8_t[::1] data not None, ends not None):
    """As `codec.cut_values`."""
    cdef bint is_wide = ends.itemsize == 8
    cdef Py_ssize_t count = len(ends) - 1, index, total = data.shape[0]
    cdef const uint8_t[::1] positions = ends.cast("B")
    cdef const uint8_t* places = &positions[0]
    cdef const char* start = NULL
    cdef int64_t begin = _position(places, 0, is_wide), end
    cdef list values = []
    if begin < 0:
        raise ValueError("Values outside of their buffer")
    if total:
        # An empty buffer has no address.
        start = <const char*>&data[0]
    for index in range(count):
        end = _position(places, index + 1, is_wide)
        if not begin <= end <= total:
            raise ValueError("Values outside of their buffer")
        values.append(b"" if begin == end else PyBytes_FromStringAndSize(start + begin, <Py_ssize_t>(end - begin)))
        begin = end
    return values


def fitting(list payloads not None, list fields, Py_ssize_t count, Py_ssize_t most, Py_ssize_t overhead):
    """As `codec.fitting`."""
    cdef Py_ssize_t index, used = 0, whole = 0
    count = min(count, len(payloads))
    if fields is not None and len(fields) < count:
        return codec.fitting(payloads, fields, count, most, overhead)
    for index in range(count):
        if type(payloads[index]) is not bytes or (fields is not None and type(fields[index]) is not bytes):
            return codec.fitting(payloads, fields, count, most, overhead)
        used += PyBytes_GET_SIZE(payloads[index]) + overhead
        if fields is not None:
            used += PyBytes_GET_SIZE(fields[index])
        if used > most:
            return index, whole
        whole += PyBytes_GET_SIZE(payloads[index])
    return count, whole


def encode_batch(payloads, sequence_ids, fields=()):
    """As `codec.encode_batch`."""
    cdef tuple values = tuple(payloads), ids = (), own = tuple(fields)
    cdef Py_ssize_t count = len(values), index, size, total = 0
    cdef bint is_run = type(sequence_ids) is range and sequence_ids.step == 1
    cdef uint64_t number = 0
    if len(sequence_ids) != count or (own and len(own) != count):
        return codec.encode_batch(payloads, sequence_ids, fields)
    if not is_run:
        ids = tuple(sequence_ids)
    elif count:
        number = PyLong_AsUnsignedLongLongMask(sequence_ids[0])
    for index in range(count):
        if type(values[index]) is not bytes or (own and type(own[index]) is not bytes):
            return codec.encode_batch(payloads, sequence_ids, fields)
        if not is_run:
            if type(ids[index]) is not int:
                return codec.encode_batch(payloads, sequence_ids, fields)
            number = PyLong_AsUnsignedLongLongMask(ids[index])
        size = PyBytes_GET_SIZE(values[index])
        total += 6 + _width(<uint64_t>size) + _width(number) + size
        number += 1
        if own:
            total += PyBytes_GET_SIZE(own[index])
    if is_run and count:
        number = PyLong_AsUnsignedLongLongMask(sequence_ids[0])
    cdef bytes body = PyBytes_FromStringAndSize(NULL, total)
    cdef uint8_t* to = <uint8_t*>PyBytes_AS_STRING(body)
    cdef uint8_t* head
    cdef uint32_t meta
    for index in range(count):
        head = to
        size = PyBytes_GET_SIZE(values[index])
        to[4] = _PAYLOAD_SIZE
        to = _put(to + 5, <uint64_t>size)
        if own:
            memcpy(to, PyBytes_AS_STRING(own[index]), <size_t>PyBytes_GET_SIZE(own[index]))
            to += PyBytes_GET_SIZE(own[index])
        to[0] = _SEQUENCE_ID
        if not is_run:
            number = PyLong_AsUnsignedLongLongMask(ids[index])
        to = _put(to + 1, number)
        number += 1
        meta = <uint32_t>(to - head - 4)
        head[0], head[1], head[2], head[3] = meta >> 24, meta >> 16 & 255, meta >> 8 & 255, meta & 255
        memcpy(to, PyBytes_AS_STRING(values[index]), <size_t>size)
        to += size
    return body


def encode_single_fields(
    properties=None,
    partition_key=None,
    key_is_base64=False,
    ordering_key=None,
    event_time=0,
    null_value=False,
    null_partition_key=False,
):
    """As `codec.encode_single_fields`."""
    cdef tuple pairs = tuple(properties.items()) if properties else ()
    cdef Py_ssize_t total = 0, size = 0, other = 0
    cdef uint64_t time = 0
    cdef const char* text
    cdef const char* value
    cdef bytes made
    cdef uint8_t* to
    try:
        for own in pairs:
            if type(own) is not tuple or len(<tuple>own) != 2:
                raise TypeError
            PyUnicode_AsUTF8AndSize((<tuple>own)[0], &size)
            PyUnicode_AsUTF8AndSize((<tuple>own)[1], &other)
            total += _text_width(_text_width(size) + _text_width(other))
        if partition_key is not None:
            PyUnicode_AsUTF8AndSize(partition_key, &size)
            total += _text_width(size) + (2 if key_is_base64 else 0)
        if event_time:
            if type(event_time) is not int:
                raise TypeError
            time = event_time
            total += 1 + _width(time)
        if ordering_key is not None:
            total += _text_width(PyBytes_GET_SIZE(<bytes?>ordering_key))
    except (TypeError, ValueError, OverflowError):
        return codec.encode_single_fields(
            properties, partition_key, key_is_base64, ordering_key, event_time, null_value, null_partition_key
        )
    total += (2 if null_value else 0) + (2 if null_partition_key else 0)
    made = PyBytes_FromStringAndSize(NULL, total)
    to = <uint8_t*>PyBytes_AS_STRING(made)
    for own in pairs:
        text = PyUnicode_AsUTF8AndSize((<tuple>own)[0], &size)
        value = PyUnicode_AsUTF8AndSize((<tuple>own)[1], &other)
        to = _put_pair(to, text, size, value, other)
    if partition_key is not None:
        text = PyUnicode_AsUTF8AndSize(partition_key, &size)
        to = _put_text(to, _PARTITION_KEY, text, size)
    if time:
        to[0] = _EVENT_TIME
        to = _put(to + 1, time)
    if partition_key is not None and key_is_base64:
        to = _put_flag(to, _KEY_IS_BASE64)
    if ordering_key is not None:
        to = _put_text(to, _ORDERING_KEY, PyBytes_AS_STRING(ordering_key), PyBytes_GET_SIZE(ordering_key))
    if null_value:
        to = _put_flag(to, _NULL_VALUE)
    if null_partition_key:
        to = _put_flag(to, _NULL_KEY)
    return made


def usual_fields(properties, partition_key, ordering_key, event_time):
    """As `codec.usual_fields`."""
    if properties is not None:
        if type(properties) is not dict:
            return None
        for key, value in (<dict>properties).items():
            if type(key) is not str or type(value) is not str:
                return None
    if partition_key is not None and type(partition_key) is not str:
        return None
    if ordering_key is not None:
        if type(ordering_key) is not str or not (<str>ordering_key).isascii():
            return None
        ordering_key = (<str>ordering_key).encode() if ordering_key else None
    if event_time is not None and (type(event_time) is not int or not 0 <= event_time <= 0xFFFFFFFFFFFFFFFF):
        return None
    return encode_single_fields(properties, partition_key, False, ordering_key, event_time or 0)


def text_fields(name, values):
    """As `codec.text_fields`."""
    cdef tuple texts = tuple(values)
    cdef Py_ssize_t name_size = 0, size = 0
    cdef const char* key = NULL
    cdef const char* text
    cdef bytes made
    cdef list found = []
    try:
        if name is not None:
            key = PyUnicode_AsUTF8AndSize(name, &name_size)
        for value in texts:
            if value is None:
                found.append(b"")
                continue
            text = PyUnicode_AsUTF8AndSize(value, &size)
            if name is None:
                made = PyBytes_FromStringAndSize(NULL, _text_width(size))
                _put_text(<uint8_t*>PyBytes_AS_STRING(made), _PARTITION_KEY, text, size)
            else:
                made = PyBytes_FromStringAndSize(NULL, _text_width(_text_width(name_size) + _text_width(size)))
                _put_pair(<uint8_t*>PyBytes_AS_STRING(made), key, name_size, text, size)
            found.append(made)
    except (TypeError, UnicodeEncodeError):
        return codec.text_fields(name, texts)
    return found


# ---- metadata of a message -------------------------------------------------------------------------------------------


@cython.no_gc
cdef class SingleFields:
    """Metadata of one message of a batch, with the attributes of SingleMessageMetadata. Built by `single_fields`."""

    cdef readonly str partition_key
    cdef readonly bytes ordering_key
    cdef readonly dict properties
    cdef readonly uint64_t event_time
    cdef readonly uint64_t sequence_id
    cdef readonly bint partition_key_b64_encoded
    cdef readonly bint null_value
    cdef readonly bint null_partition_key
    cdef bint has_key
    cdef bint has_sequence_id

    def HasField(self, str name not None):
        """Return whether the key or the sequence id is present; other names raise."""
        if name == "partition_key":
            return self.has_key
        if name == "sequence_id":
            return self.has_sequence_id
        raise ValueError(f"The presence of {name} is not known")


cdef bint _read_single(SingleFields made, Bytes data, Py_ssize_t at, Py_ssize_t stop) except -1:
    """Read the metadata from `at` to `stop`; return True if they are ordinary. Raises for texts that are not UTF-8."""
    cdef uint64_t value = 0
    cdef Span span
    cdef Pair pair
    cdef uint8_t tag
    cdef bint sized = False
    while at < stop:
        tag = data[at]
        if tag == _PROPERTIES or tag == _PARTITION_KEY or tag == _ORDERING_KEY:
            at = _span(data, at + 1, stop, &span)
            if at < 0:
                return False
            if tag == _PARTITION_KEY:
                made.has_key = True
                made.partition_key = PyUnicode_DecodeUTF8(<const char*>data + span.start, span.size, NULL)
            elif tag == _ORDERING_KEY:
                made.ordering_key = PyBytes_FromStringAndSize(<const char*>data + span.start, span.size)
            else:
                if not _pair(data, span, &pair):
                    return False
                made.properties[
                    PyUnicode_DecodeUTF8(<const char*>data + pair.key.start, pair.key.size, NULL)
                ] = PyUnicode_DecodeUTF8(<const char*>data + pair.value.start, pair.value.size, NULL)
            continue
        at = _varint(data, at + 1, stop, &value)
        if at < 0:
            return False
        if tag == _PAYLOAD_SIZE:
            sized = True
            if value > _MAX_BODY:
                return False
        elif tag == _SEQUENCE_ID:
            made.has_sequence_id = True
            made.sequence_id = value
        elif tag == _EVENT_TIME:
            made.event_time = value
        elif tag == _KEY_IS_BASE64:
            made.partition_key_b64_encoded = value != 0
        elif tag == _NULL_VALUE:
            made.null_value = value != 0
        elif tag == _NULL_KEY:
            made.null_partition_key = value != 0
        elif tag != _COMPACTED_OUT:
            return False
    return sized


def single_fields(bytes body not None, Py_ssize_t start, Py_ssize_t stop):
    """As `codec.single_fields`, but for the type: the properties are a dict."""
    cdef SingleFields made = SingleFields()
    made.partition_key, made.ordering_key, made.properties = "", b"", {}
    if 0 <= start <= stop <= PyBytes_GET_SIZE(body) <= _MAX_BODY:
        try:
            if _read_single(made, <Bytes>PyBytes_AS_STRING(body), start, stop):
                return made
        except UnicodeDecodeError:
            pass
    return codec.single_fields(body, start, stop)


# ---- columns ---------------------------------------------------------------------------------------------------------


cdef class Singles:
    """Messages scanned once; returns their columns as packed bytes.

    Built by `scan_batch` of a batch, by `scan_batches` of several, whose bodies `body` has one behind another, and by
    `scan_entries` of entries of one message, whose metadata and bodies it has in turns.
    """

    cdef bytes body
    cdef Row* rows
    cdef Pair* pairs
    cdef Py_ssize_t room  # for pairs
    cdef readonly Py_ssize_t count
    cdef readonly Py_ssize_t value_bytes
    # True if any message has a key: a column of nulls is built faster at once.
    cdef readonly bint has_keys
    cdef readonly bint has_event_times
    cdef readonly bint has_properties

    def __dealloc__(self):
        free(self.rows)
        free(self.pairs)

    cdef bint _read_batch(
        self, Py_ssize_t position, Py_ssize_t total, Py_ssize_t first, Py_ssize_t last, bytes skip, uint64_t sequence_id
    ) noexcept:
        """Read the messages of the batch from `position` to `total`; return True if they are ordinary."""
        cdef Bytes data = <Bytes>PyBytes_AS_STRING(self.body)
        cdef Py_ssize_t start, stop, index
        cdef uint32_t pairs = self.rows[self.count - 1].pairs if self.count else 0
        cdef Row* row
        for index in range(last):
            start = position + 4
            stop = _metadata(data, position, total)
            if stop < 0:
                return False
            if index < first or (skip is not None and <uint8_t>PyBytes_AS_STRING(skip)[index]):
                position = _payload_end(data, start, stop, total)
                if position < 0:
                    return False
                continue
            row = &self.rows[self.count]
            memset(row, 0, sizeof(Row))
            row.pairs = pairs
            row.sequence_id = sequence_id + <uint64_t>index
            if not self._read(data, start, stop, total, row):
                return False
            position = stop + row.value.size
            pairs = row.pairs
            if not row.null_value:
                self.value_bytes += row.value.size
            self.has_keys = self.has_keys or row.has_key
            self.has_event_times = self.has_event_times or row.event_time != 0
            self.count += 1
        self.has_properties = pairs > 0
        return True

    cdef bint _read(self, Bytes data, Py_ssize_t at, Py_ssize_t stop, Py_ssize_t total, Row* row) noexcept:
        """Read the metadata from `at` to `stop`; return True if they are ordinary."""
        cdef uint64_t value = 0
        cdef Span span
        cdef uint8_t tag
        cdef uint32_t first = row.pairs
        cdef bint sized = False
        while at < stop:
            tag = data[at]
            if tag == _PROPERTIES or tag == _PARTITION_KEY or tag == _ORDERING_KEY:
                at = _span(data, at + 1, stop, &span)
                if at < 0 or (tag == _PROPERTIES and not self._add_pair(data, span, first, row)):
                    return False
                if tag == _PARTITION_KEY:
                    row.key = span
                    row.has_key = True
                continue
            at = _varint(data, at + 1, stop, &value)
            if at < 0:
                return False
            if tag == _PAYLOAD_SIZE:
                if sized or value > <uint64_t>(total - stop):
                    return False
                sized = True
                row.value.start = <uint32_t>stop
                row.value.size = <uint32_t>value
            elif tag == _SEQUENCE_ID:
                row.sequence_id = value
            elif tag == _EVENT_TIME:
                row.event_time = value
            elif tag == _KEY_IS_BASE64:
                row.key_is_base64 = value != 0
            elif tag == _NULL_VALUE:
                row.null_value = value != 0
            elif tag != _COMPACTED_OUT and tag != _NULL_KEY:
                return False
        return sized and (not row.has_key or not row.key_is_base64 or _is_base64(data, row.key))

    cdef bint _read_entry(self, Bytes data, Py_ssize_t at, Py_ssize_t stop, Row* row) noexcept:
        """Read an entry's metadata, which `scan_entry` accepted, from `at` to `stop`; True if they are ordinary."""
        cdef uint64_t value = 0, tag = 0
        cdef Span span
        cdef uint32_t first = row.pairs
        while at < stop:
            at = _varint(data, at, stop, &tag)
            if at < 0:
                return False
            if tag & 7 == 2:
                at = _span(data, at, stop, &span)
                if at < 0 or (tag == 0x22 and not self._add_pair(data, span, first, row)):
                    return False
                if tag == 0x32:
                    row.key = span
                    row.has_key = True
                continue
            at = _varint(data, at, stop, &value)
            if at < 0:
                return False
            if tag == 0x10:
                row.sequence_id = value
            elif tag == 0x60:
                row.event_time = value
            elif tag == 0x88:
                row.key_is_base64 = value != 0
            elif tag == 0xC8:
                row.null_value = value != 0
        return not row.has_key or not row.key_is_base64 or _is_base64(data, row.key)

    cdef bint _add_pair(self, Bytes data, Span span, uint32_t first, Row* row) noexcept:
        """Record a property; False when it is not just a key and a value, or the message has the key already."""
        cdef Pair pair
        cdef Pair* grown
        cdef uint32_t other
        if row.pairs - first >= _MAX_PAIRS or not _pair(data, span, &pair):
            return False
        for other in range(first, row.pairs):
            if self.pairs[other].key.size == pair.key.size and not memcmp(
                data + self.pairs[other].key.start, data + pair.key.start, pair.key.size
            ):
                return False
        if row.pairs == self.room:
            grown = <Pair*>realloc(self.pairs, <size_t>(self.room * 2 + 64) * sizeof(Pair))
            if grown == NULL:
                return False
            self.pairs = grown
            self.room = self.room * 2 + 64
        self.pairs[row.pairs] = pair
        row.pairs += 1
        return True

    def values(self, uint32_t base):
        """Return the ends of the values behind `base`, and the rows of null messages."""
        cdef bytes ends = PyBytes_FromStringAndSize(NULL, self.count * 4)
        cdef uint32_t* end = <uint32_t*>PyBytes_AS_STRING(ends)
        cdef Py_ssize_t index
        cdef list nulls = []
        for index in range(self.count):
            if self.rows[index].null_value:
                nulls.append(index)
            else:
                base += self.rows[index].value.size
            end[index] = base
        return ends, nulls

    cdef uint8_t* _put_values(self, uint8_t* to) noexcept:
        cdef Bytes data = <Bytes>PyBytes_AS_STRING(self.body)
        cdef Py_ssize_t index
        for index in range(self.count):
            if not self.rows[index].null_value:
                memcpy(to, data + self.rows[index].value.start, self.rows[index].value.size)
                to += self.rows[index].value.size
        return to

    def keys(self, uint32_t base):
        """Return the keys joined, their ends behind `base`, and the rows without one."""
        cdef Bytes data = <Bytes>PyBytes_AS_STRING(self.body)
        cdef Row* row
        cdef Py_ssize_t index, total = 0
        for index in range(self.count):
            if self.rows[index].has_key:
                total += self.rows[index].key.size
        cdef bytes packed = PyBytes_FromStringAndSize(NULL, total)
        cdef bytes ends = PyBytes_FromStringAndSize(NULL, self.count * 4), text
        cdef uint8_t* begin = <uint8_t*>PyBytes_AS_STRING(packed)
        cdef uint8_t* to = begin
        cdef uint32_t* end = <uint32_t*>PyBytes_AS_STRING(ends)
        cdef list nulls = []
        for index in range(self.count):
            row = &self.rows[index]
            if not row.has_key:
                nulls.append(index)
            elif row.key_is_base64:
                text = a2b_base64(self.body[row.key.start : row.key.start + row.key.size])
                # The decoded bytes are never longer than the base64 text.
                memcpy(to, PyBytes_AS_STRING(text), <size_t>min(PyBytes_GET_SIZE(text), <Py_ssize_t>row.key.size))
                to += PyBytes_GET_SIZE(text)
            else:
                memcpy(to, data + row.key.start, row.key.size)
                to += row.key.size
            end[index] = base + <uint32_t>(to - begin)
        return packed if to - begin == total else packed[: to - begin], ends, nulls

    def event_times(self):
        """Return the times in microseconds, and the rows without one that Arrow can represent."""
        cdef bytes packed = PyBytes_FromStringAndSize(NULL, self.count * 8)
        cdef int64_t* to = <int64_t*>PyBytes_AS_STRING(packed)
        cdef uint64_t time
        cdef Py_ssize_t index
        cdef list nulls = []
        for index in range(self.count):
            time = self.rows[index].event_time
            if not time or time > _MAX_MILLIS:
                nulls.append(index)
                time = 0
            to[index] = <int64_t>(time * 1000)
        return packed, nulls

    def sequence_ids(self):
        """Return the sequence ids."""
        cdef bytes packed = PyBytes_FromStringAndSize(NULL, self.count * 8)
        cdef uint64_t* to = <uint64_t*>PyBytes_AS_STRING(packed)
        cdef Py_ssize_t index
        for index in range(self.count):
            to[index] = self.rows[index].sequence_id
        return packed

    def properties(self, uint32_t base, uint32_t key_base, uint32_t value_base):
        """Return the ends of the rows behind `base` pairs; joined keys and their ends; joined values and their ends."""
        cdef bytes ends = PyBytes_FromStringAndSize(NULL, self.count * 4)
        cdef uint32_t* end = <uint32_t*>PyBytes_AS_STRING(ends)
        cdef Py_ssize_t index, count = self.rows[self.count - 1].pairs if self.count else 0
        for index in range(self.count):
            end[index] = base + self.rows[index].pairs
        return ends, self._texts(0, count, key_base), self._texts(1, count, value_base)

    cdef tuple _texts(self, bint of_value, Py_ssize_t count, uint32_t base):
        """Return the keys or the values of all pairs joined, and their ends behind `base`."""
        cdef Bytes data = <Bytes>PyBytes_AS_STRING(self.body)
        cdef Py_ssize_t index, total = 0
        cdef Span span
        for index in range(count):
            total += self.pairs[index].value.size if of_value else self.pairs[index].key.size
        cdef bytes packed = PyBytes_FromStringAndSize(NULL, total), ends = PyBytes_FromStringAndSize(NULL, count * 4)
        cdef uint8_t* to = <uint8_t*>PyBytes_AS_STRING(packed)
        cdef uint32_t* end = <uint32_t*>PyBytes_AS_STRING(ends)
        for index in range(count):
            span = self.pairs[index].value if of_value else self.pairs[index].key
            memcpy(to, data + span.start, span.size)
            to += span.size
            base += span.size
            end[index] = base
        return packed, ends


cdef bint _is_base64(Bytes data, Span span) noexcept:
    """Return True if these are whole groups of base64 characters, padded at the end only."""
    cdef uint32_t index, size = span.size
    cdef uint8_t byte
    if size % 4:
        return False
    while size and span.size - size < 2 and data[span.start + size - 1] == c"=":
        size -= 1
    for index in range(size):
        byte = data[span.start + index]
        if not (c"A" <= byte <= c"Z" or c"a" <= byte <= c"z" or c"0" <= byte <= c"9" or byte == c"+" or byte == c"/"):
            return False
    return True


def scan_batch(bytes body not None, Py_ssize_t first, Py_ssize_t last, skip, uint64_t sequence_id):
    """Scan the messages from `first` to `last` that `skip` does not exclude; None when any is not ordinary.

    `sequence_id` is the entry's, from which messages without their own count.
    """
    cdef Py_ssize_t total = PyBytes_GET_SIZE(body)
    cdef bytes skipped = skip
    if total > _MAX_BODY or not _is_slice(total, first, last, skipped):
        return None
    cdef Singles found = Singles()
    found.body = body
    found.rows = <Row*>malloc(<size_t>(last - first + 1) * sizeof(Row))
    if found.rows == NULL or not found._read_batch(0, total, first, last, skipped, sequence_id):
        return None
    return found


cdef bint _is_slice(Py_ssize_t total, Py_ssize_t first, Py_ssize_t last, bytes skip) noexcept:
    """Return True if a body of `total` bytes may have messages from `first` to `last`, and `skip` covers them."""
    return 0 <= first <= last <= total // 4 and (skip is None or PyBytes_GET_SIZE(skip) >= last)


def scan_batches(list parts not None):
    """Scan the messages of several batches (`EntryRows`), one behind another; None when any is not ordinary."""
    cdef tuple held = tuple(parts)
    cdef Py_ssize_t total = 0, rows = 0, at = 0, size
    cdef bytes body
    cdef list slices = []
    for part in held:
        if type(part.parsed) is not ScannedEntry or type(part.body) is not bytes:
            return None
        body = part.body
        slices.append((body, part.first, part.last, part.skip, (<ScannedEntry>part.parsed).sequence_id))
        if not _is_slice(PyBytes_GET_SIZE(body), part.first, part.last, part.skip):
            return None
        total += PyBytes_GET_SIZE(body)
        rows += part.last - part.first
    if total > _MAX_BODY:
        return None
    cdef Singles found = Singles()
    found.body = PyBytes_FromStringAndSize(NULL, total)
    found.rows = <Row*>malloc(<size_t>(rows + 1) * sizeof(Row))
    if found.rows == NULL:
        return None
    for body, first, last, skip, sequence_id in slices:
        size = PyBytes_GET_SIZE(body)
        memcpy(PyBytes_AS_STRING(found.body) + at, PyBytes_AS_STRING(body), <size_t>size)
        if not found._read_batch(at, at + size, first, last, skip, sequence_id):
            return None
        at += size
    return found


def join_parts(list parts not None):
    """Return parts of a column, bytes or the values of a `Singles`, joined."""
    cdef tuple pieces = tuple(parts)
    cdef Py_ssize_t total = 0
    for part in pieces:
        total += (<Singles>part).value_bytes if type(part) is Singles else len(<bytes?>part)
    cdef bytes joined = PyBytes_FromStringAndSize(NULL, total)
    cdef uint8_t* to = <uint8_t*>PyBytes_AS_STRING(joined)
    for part in pieces:
        if type(part) is Singles:
            to = (<Singles>part)._put_values(to)
        else:
            memcpy(to, PyBytes_AS_STRING(part), <size_t>PyBytes_GET_SIZE(part))
            to += PyBytes_GET_SIZE(part)
    return joined


# ---- message ids -----------------------------------------------------------------------------------------------------


def encode_message_id(message_id):
    """As `message_id.encode`."""
    cdef int64_t ledger, entry, partition, index, size
    cdef uint8_t room[64]
    cdef uint8_t* to = room
    if message_id._first_chunk is not None:
        return _encode_id(message_id)
    try:
        ledger, entry = message_id._ledger_id, message_id._entry_id
        partition, index, size = message_id._partition, message_id._batch_index, message_id._batch_size
    except (OverflowError, TypeError):
        return _encode_id(message_id)
    to[0] = 0x08
    to = _put(to + 1, <uint64_t>ledger)
    to[0] = 0x10
    to = _put(to + 1, <uint64_t>entry)
    if partition >= 0:
        to[0] = 0x18
        to = _put(to + 1, <uint64_t>partition)
    if index >= 0:
        to[0] = 0x20
        to = _put(to + 1, <uint64_t>index)
    to[0] = 0x30
    to = _put(to + 1, <uint64_t>size)
    return PyBytes_FromStringAndSize(<char*>room, to - room)


def decode_message_id(bytes data not None, topic):
    """As `message_id.decode`."""
    cdef Bytes body = <Bytes>PyBytes_AS_STRING(data)
    cdef Py_ssize_t total = PyBytes_GET_SIZE(data), at = 0
    cdef int64_t ledger = -1, entry = -1, partition = -1, index = -1, size = 0
    cdef uint64_t value = 0
    cdef uint8_t tag
    while at < total:
        tag = body[at]
        at = _varint(body, at + 1, total, &value)
        if at < 0:
            return _decode_id(data, topic)
        if tag == 0x08:
            ledger = <int64_t>value
        elif tag == 0x10:
            entry = <int64_t>value
        elif tag == 0x18:
            partition = <int64_t>value
        elif tag == 0x20:
            index = <int64_t>value
        elif tag == 0x30:
            size = <int64_t>value
        else:
            return _decode_id(data, topic)
    if ledger < 0 or entry < 0:
        return _decode_id(data, topic)
    made = _new(MessageId)
    made._partition = partition
    made._ledger_id = ledger
    made._entry_id = entry
    made._batch_index = index
    made._batch_size = size
    made._topic = topic
    made._first_chunk = None
    return made


def encode_ack_ids(list items not None):
    """Return the ids of an acknowledgement as its field `message_id`; None where one has an ack set."""
    cdef Py_ssize_t count = len(items), size
    # Of an id: its tag and size, and two fields of at most eleven bytes.
    cdef uint8_t* room = <uint8_t*>malloc(<size_t>(count * 24 + 1))
    cdef uint8_t* to = room
    cdef uint8_t* begin
    if room == NULL:
        raise MemoryError
    try:
        for ledger, entry, words in items:
            if words is not None:
                return None
            begin = to
            to = begin + 2
            to[0] = 0x08
            to = _put(to + 1, <uint64_t>PyLong_AsUnsignedLongLongMask(ledger))
            to[0] = 0x10
            to = _put(to + 1, <uint64_t>PyLong_AsUnsignedLongLongMask(entry))
            size = to - begin - 2
            begin[0], begin[1] = 0x1A, <uint8_t>size
        return PyBytes_FromStringAndSize(<char*>room, to - room)
    finally:
        free(room)


# ---- MESSAGE frames and entries --------------------------------------------------------------------------------------


cdef enum:
    _MESSAGE = 9
    _LATEST_COMPRESSION = 4


@cython.no_gc
cdef class MessageCommand:
    """BaseCommand of type MESSAGE, its CommandMessage and its MessageIdData in one, with the attributes they have."""

    cdef readonly uint64_t consumer_id
    cdef readonly uint64_t ledgerId
    cdef readonly uint64_t entryId
    cdef readonly int32_t partition
    cdef readonly uint32_t redelivery_count
    cdef readonly uint64_t consumer_epoch
    cdef readonly tuple ack_set
    cdef bint has_epoch

    @property
    def type(self):
        return _MESSAGE

    @property
    def message(self):
        return self

    @property
    def message_id(self):
        return self

    def HasField(self, str name not None):
        """Return whether a field of the command or of its CommandMessage is present; other names raise."""
        if name in ("type", "message", "message_id", "consumer_id"):
            return True
        if name == "consumer_epoch":
            return self.has_epoch
        raise ValueError(f"The presence of {name} is not known")


# The partition of a topic without partitions.
cdef const char* _MINUS_ONE = b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"


cdef bint _read_message_id(MessageCommand made, Bytes data, Py_ssize_t at, Py_ssize_t stop) noexcept:
    cdef uint64_t value = 0
    cdef uint8_t tag
    cdef int seen = 0
    while at < stop:
        tag = data[at]
        if tag == 0x18 and stop - at >= 11 and not memcmp(data + at + 1, _MINUS_ONE, 10):
            made.partition = -1
            at += 11
            continue
        at = _varint(data, at + 1, stop, &value)
        if at < 0:
            return False
        if tag == 0x08:
            made.ledgerId = value
            seen |= 1
        elif tag == 0x10:
            made.entryId = value
            seen |= 2
        elif tag == 0x18 and value < 0x7FFFFFFF:
            made.partition = <int32_t>value
        else:
            return False
    return seen == 3


cdef MessageCommand _read_message(Bytes data, Py_ssize_t at, Py_ssize_t stop):
    """Return the command from `at` to `stop` if it is an ordinary MESSAGE, else None."""
    cdef uint64_t value = 0
    cdef Span span
    cdef uint8_t tag
    cdef int seen = 0
    if stop - at < 4 or data[at] != 0x08 or data[at + 1] != _MESSAGE or data[at + 2] != 0x4A:
        return None
    if _span(data, at + 3, stop, &span) != stop:
        return None
    at = span.start
    cdef MessageCommand made = MessageCommand()
    made.partition = -1
    made.ack_set = ()
    while at < stop:
        tag = data[at]
        if tag == 0x12:
            at = _span(data, at + 1, stop, &span)
            if at < 0 or not _read_message_id(made, data, span.start, at):
                return None
            seen |= 2
            continue
        at = _varint(data, at + 1, stop, &value)
        if at < 0:
            return None
        if tag == 0x08:
            made.consumer_id = value
            seen |= 1
        elif tag == 0x18 and value <= 0xFFFFFFFF:
            made.redelivery_count = <uint32_t>value
        elif tag == 0x28:
            made.consumer_epoch = value
            made.has_epoch = True
        else:
            return None
    return made if seen == 3 else None


def cut_messages(view, Py_ssize_t position, Py_ssize_t most, list frames not None, type kind not None):
    """Cut the ordinary MESSAGE frames of at most `most` bytes from `position` on; return where they end."""
    if not issubclass(kind, tuple):
        raise TypeError(f"{kind.__name__} is no kind of tuple")
    cdef const uint8_t[::1] held = view
    cdef Py_ssize_t end = held.shape[0], total, size, stop
    cdef Bytes data
    cdef MessageCommand command
    if not 0 <= position < end <= _MAX_BODY:
        return position
    data = &held[0]
    while end - position >= 8:
        total, size = <Py_ssize_t>_big_endian(data + position), <Py_ssize_t>_big_endian(data + position + 4)
        stop = position + 4 + total
        if total + 4 > most or size > total - 4 or stop > end:
            break
        command = _read_message(data, position + 8, position + 8 + size)
        if command is None:
            break
        size += position + 8
        # As `tuple.__new__`, without its call: that of a named tuple is a function in Python.
        pair = (command, PyBytes_FromStringAndSize(<const char*>data + size, stop - size))
        frames.append((<PyTypeObject*>tuple).tp_new(<PyTypeObject*>kind, (pair,), NULL))
        position = stop
    return position


def messages_end(list frames not None, Py_ssize_t start):
    """Return where the MESSAGE frames of one consumer end that begin at `start` and were cut by `cut_messages`."""
    cdef Py_ssize_t index = start
    cdef uint64_t consumer_id = 0
    while 0 <= index < len(frames):
        frame = frames[index]
        command = (<tuple>frame)[0] if isinstance(frame, tuple) else None
        if type(command) is not MessageCommand:
            break
        if index == start:
            consumer_id = (<MessageCommand>command).consumer_id
        elif (<MessageCommand>command).consumer_id != consumer_id:
            break
        index += 1
    return index


cdef class ScannedEntry:
    """Parsed entry with the attributes of `entry.ParsedEntry`, whose metadata are parsed when they are read first."""

    cdef readonly object broker_timestamp
    cdef readonly object index
    cdef readonly object checksum_ok
    cdef readonly bint is_batch
    cdef readonly bint is_encrypted
    cdef readonly bint is_chunk
    cdef readonly bint is_compacted
    cdef readonly int32_t num_messages
    cdef readonly uint64_t publish_time
    cdef uint64_t sequence_id
    cdef readonly int32_t compression
    cdef readonly uint32_t uncompressed_size
    cdef public object body
    cdef bytes raw
    cdef object parsed

    @property
    def metadata(self):
        """The producer's metadata of the entry."""
        if self.parsed is None:
            self.parsed = _read_metadata(self.raw)
        return self.parsed


cdef bint _read_metadata_fields(ScannedEntry made, Bytes data, Py_ssize_t at, Py_ssize_t stop) noexcept:
    """Read the entry's metadata from `at` to `stop`; return True if they are ordinary."""
    cdef uint64_t value = 0
    cdef Span span
    cdef Pair pair
    cdef uint64_t tag = 0
    cdef Py_ssize_t begin
    cdef int seen = 0
    while at < stop:
        begin = at
        at = _varint(data, at, stop, &tag)
        # protobuf's parser refuses tags of more than five bytes; ordinary ones have two at most.
        if at < 0 or at - begin > 2:
            return False
        if tag & 7 == 2:
            at = _span(data, at, stop, &span)
            if at < 0:
                return False
            if tag == 0x0A:
                seen |= 1
            elif tag == 0x22:
                if not _pair(data, span, &pair):
                    return False
            elif tag != 0x2A and tag != 0x32 and tag != 0x3A and tag != 0x82 and tag != 0x92:
                # Not replication, key, schema version or ordering key.
                return False
            continue
        if tag & 7:
            return False
        at = _varint(data, at, stop, &value)
        if at < 0:
            return False
        if tag == 0x10:
            seen |= 2
            made.sequence_id = value
        elif tag == 0x18:
            seen |= 4
            made.publish_time = value
        elif tag == 0x40 and value <= _LATEST_COMPRESSION:
            made.compression = <int32_t>value
        elif tag == 0x48 and value <= 0xFFFFFFFF:
            made.uncompressed_size = <uint32_t>value
        elif tag == 0x58 and value <= 0x7FFFFFFF:
            made.is_batch = True
            made.num_messages = <int32_t>value if value else 1
        elif tag != 0x60 and tag != 0x88 and tag != 0x98 and tag != 0xB0 and tag != 0xB8 and tag != 0xC0 and tag != 0xC8 and tag != 0xF0:
            # Not the event time, the flags of key and value, the delivery time, the transaction's id or the highest
            # sequence id.
            return False
    return seen == 7


cdef Py_ssize_t _read_broker_metadata(ScannedEntry made, Bytes data, Py_ssize_t at, Py_ssize_t total) except -2:
    """Read the broker's metadata whose size is at `at`; return their end, -1 if they are not ordinary."""
    cdef Py_ssize_t stop = _metadata(data, at, total)
    cdef uint64_t value = 0
    cdef uint8_t tag
    at += 4
    while at < stop:
        tag = data[at]
        at = _varint(data, at + 1, stop, &value)
        if at < 0:
            return -1
        if tag == 0x08:
            made.broker_timestamp = value
        elif tag == 0x10:
            made.index = value
        else:
            return -1
    return stop


def scan_entry(payload, bint verify):
    """Return the parsed entry if it is ordinary, and intact where it is to be verified; else None."""
    if type(payload) is not bytes:
        return None
    cdef Bytes data = <Bytes>PyBytes_AS_STRING(payload)
    cdef Py_ssize_t total = PyBytes_GET_SIZE(payload), at = 0, stop
    cdef ScannedEntry made = ScannedEntry()
    if total > _MAX_BODY:
        return None
    if total > 2 and data[0] == 0x0E and data[1] == 0x02:
        at = _read_broker_metadata(made, data, 2, total)
    if at < 0 or total - at < 6:
        return None
    if data[at] == 0x0E and data[at + 1] == 0x01:
        if verify:
            # One object instead of a view and its slice. `payload` outlives it.
            rest = PyMemoryView_FromMemory(<char*>data + at + 6, total - at - 6, PyBUF_READ)
            if <uint32_t>_crc32c(rest) != _big_endian(data + at + 2):
                return None
            made.checksum_ok = True
        at += 6
    stop = _metadata(data, at, total)
    made.num_messages = 1
    if stop < 0 or not _read_metadata_fields(made, data, at + 4, stop):
        return None
    made.raw = PyBytes_FromStringAndSize(<const char*>data + at + 4, stop - at - 4)
    if made.compression:
        made.body = memoryview(payload)[stop:]
    else:
        # The body is delivered as it is: a copy now, and none later.
        made.body = PyBytes_FromStringAndSize(<const char*>data + stop, total - stop)
    return made


def scan_entries(list parts not None):
    """Scan entries of one message each, without a batch (`EntryRows`); None when any is not ordinary."""
    cdef tuple held = tuple(parts)
    cdef Py_ssize_t total = 0, at = 0, size
    cdef ScannedEntry parsed
    cdef bytes body
    cdef list entries = []
    for part in held:
        if type(part.parsed) is not ScannedEntry or type(part.body) is not bytes:
            return None
        parsed, body = part.parsed, part.body
        if parsed.is_batch:
            return None
        total += PyBytes_GET_SIZE(parsed.raw) + PyBytes_GET_SIZE(body)
        entries.append((parsed, body))
    if total > _MAX_BODY:
        return None
    cdef Singles found = Singles()
    found.body = PyBytes_FromStringAndSize(NULL, total)
    found.rows = <Row*>malloc(<size_t>(len(entries) + 1) * sizeof(Row))
    if found.rows == NULL:
        return None
    cdef uint8_t* data = <uint8_t*>PyBytes_AS_STRING(found.body)
    cdef Row* row
    cdef uint32_t pairs = 0
    for parsed, body in entries:
        row = &found.rows[found.count]
        memset(row, 0, sizeof(Row))
        row.pairs = pairs
        size = PyBytes_GET_SIZE(parsed.raw)
        memcpy(data + at, PyBytes_AS_STRING(parsed.raw), <size_t>size)
        if not found._read_entry(data, at, at + size, row):
            return None
        at += size
        size = PyBytes_GET_SIZE(body)
        memcpy(data + at, PyBytes_AS_STRING(body), <size_t>size)
        row.value.start = <uint32_t>at
        row.value.size = <uint32_t>size
        at += size
        pairs = row.pairs
        if not row.null_value:
            found.value_bytes += size
        found.has_keys = found.has_keys or row.has_key
        found.has_event_times = found.has_event_times or row.event_time != 0
        found.count += 1
    found.has_properties = pairs > 0
    return found


def entry_ids(list parts not None, int64_t partition, uint32_t base):
    """Return the ids of entries of one message without a batch (`EntryRows`), joined, and their ends behind `base`.

    None when any has chunks.
    """
    cdef tuple held = tuple(parts)
    cdef bytes packed = PyBytes_FromStringAndSize(NULL, len(held) * 40)
    cdef bytes ends = PyBytes_FromStringAndSize(NULL, len(held) * 4)
    cdef uint8_t* begin = <uint8_t*>PyBytes_AS_STRING(packed)
    cdef uint8_t* to = begin
    cdef uint32_t* end = <uint32_t*>PyBytes_AS_STRING(ends)
    cdef Py_ssize_t index = 0
    for part in held:
        if part.first_chunk is not None:
            return None
        to[0] = 0x08
        to = _put(to + 1, PyLong_AsUnsignedLongLongMask(part.ledger_id))
        to[0] = 0x10
        to = _put(to + 1, PyLong_AsUnsignedLongLongMask(part.entry_id))
        if partition >= 0:
            to[0] = 0x18
            to = _put(to + 1, <uint64_t>partition)
        # The size of the batch: 0.
        to[0] = 0x30
        to[1] = 0
        to += 2
        end[index] = base + <uint32_t>(to - begin)
        index += 1
    return packed[: to - begin], ends


def batch_ids(list parts not None, int64_t partition, uint32_t base):
    """Return the ids of the messages of batches (`EntryRows`), joined, and their ends behind `base`.

    None when any has chunks.
    """
    cdef tuple held = tuple(parts)
    cdef Py_ssize_t rows = 0, row = 0, head_size, tail_size
    cdef int64_t index
    cdef bytes skip
    cdef uint8_t[40] head
    cdef uint8_t[8] tail
    cdef uint8_t* to
    for part in held:
        if part.first_chunk is not None:
            return None
        rows += part.last - part.first
    cdef bytes packed = PyBytes_FromStringAndSize(NULL, rows * <Py_ssize_t>(sizeof(head) + 8 + sizeof(tail)))
    cdef bytes ends = PyBytes_FromStringAndSize(NULL, rows * 4)
    cdef uint8_t* begin = <uint8_t*>PyBytes_AS_STRING(packed)
    cdef uint8_t* at = begin
    cdef uint32_t* end = <uint32_t*>PyBytes_AS_STRING(ends)
    for part in held:
        head[0] = 0x08
        to = _put(head + 1, PyLong_AsUnsignedLongLongMask(part.ledger_id))
        to[0] = 0x10
        to = _put(to + 1, PyLong_AsUnsignedLongLongMask(part.entry_id))
        if partition >= 0:
            to[0] = 0x18
            to = _put(to + 1, <uint64_t>partition)
        to[0] = 0x20
        head_size = to + 1 - head
        tail[0] = 0x30
        tail_size = _put(tail + 1, <uint32_t>part.parsed.num_messages) - tail
        skip = part.skip
        for index in range(part.first, part.last):
            if skip is not None and <uint8_t>PyBytes_AS_STRING(skip)[index]:
                continue
            memcpy(at, head, <size_t>head_size)
            at = _put(at + head_size, <uint64_t>index)
            memcpy(at, tail, <size_t>tail_size)
            at += tail_size
            end[row] = base + <uint32_t>(at - begin)
            row += 1
    return packed[: at - begin], ends[: row * 4]


# ---- Avro records ----------------------------------------------------------------------------------------------------
#
# Of fields with one primitive type, or of such a type and null; fastavro is the reference. A field is a byte: its type,
# and where null is in its union.

cdef enum:
    _BOOLEAN = 1
    _INT = 2
    _LONG = 3
    _FLOAT = 4
    _DOUBLE = 5
    _BYTES = 6
    _STRING = 7
    _NULL_FIRST = 8
    _NULL_LAST = 16

cdef double _MAX_FLOAT = 3.4028234663852886e38
# Avro's floating-point numbers are copied as they are.
cdef bint _IS_LITTLE_ENDIAN = sys.byteorder == "little"


cdef inline int64_t _signed_of(uint64_t value) noexcept nogil:
    """Return the number that zig-zag coding has written as this one."""
    return <int64_t>(value >> 1) ^ -<int64_t>(value & 1)


cdef inline uint64_t _zigzag(int64_t value) noexcept nogil:
    return (<uint64_t>value << 1) ^ <uint64_t>(value >> 63)


def read_flat(data, tuple names not None, bytes kinds not None):
    """Return the values of a record by name; None for bytes that are not ordinary, or no such record."""
    cdef Bytes body
    cdef Py_ssize_t total, at = 0, index, count = len(names)
    cdef uint64_t number = 0
    cdef uint8_t kind
    cdef dict values = {}
    cdef float single = 0
    cdef double wide = 0
    if type(data) is not bytes or PyBytes_GET_SIZE(kinds) != count or not _IS_LITTLE_ENDIAN:
        return None
    body, total = <Bytes>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data)
    for index in range(count):
        kind = <uint8_t>PyBytes_AS_STRING(kinds)[index]
        if kind >= _NULL_FIRST:
            # The union's branch: 0 or 1, as 0 or 2.
            if at >= total or body[at] & 0xFD:
                return None
            at += 1
            if (body[at - 1] == 0) == (kind < _NULL_LAST):
                values[names[index]] = None
                continue
            kind &= 7
        if kind == _DOUBLE:
            if total - at < 8:
                return None
            memcpy(&wide, body + at, 8)
            at += 8
            values[names[index]] = wide
        elif kind == _FLOAT:
            if total - at < 4:
                return None
            memcpy(&single, body + at, 4)
            at += 4
            values[names[index]] = <double>single
        elif kind == _BOOLEAN:
            if at >= total:
                return None
            values[names[index]] = body[at] != 0
            at += 1
        else:
            at = _varint(body, at, total, &number)
            if at < 0:
                return None
            if kind < _FLOAT:
                values[names[index]] = _signed_of(number)
                continue
            if number & 1 or number >> 1 > <uint64_t>(total - at):
                return None
            number >>= 1
            if kind == _BYTES:
                values[names[index]] = PyBytes_FromStringAndSize(<const char*>body + at, <Py_ssize_t>number)
            else:
                try:
                    values[names[index]] = PyUnicode_DecodeUTF8(<const char*>body + at, <Py_ssize_t>number, NULL)
                except UnicodeDecodeError:
                    return None
            at += <Py_ssize_t>number
    # Bytes after the record are not ordinary.
    return values if at == total else None


cdef inline Py_ssize_t _flat_size(object value, uint8_t kind) except -2:
    """Return the encoded size of a value of a type; -1 if it is not just of this type."""
    cdef Py_ssize_t size = 0
    cdef int64_t number
    if kind == _DOUBLE:
        return 8 if type(value) is float else -1
    if kind == _FLOAT:
        return 4 if type(value) is float and -_MAX_FLOAT <= <double>value <= _MAX_FLOAT else -1
    if kind == _BOOLEAN:
        return 1 if type(value) is bool else -1
    if kind == _STRING:
        if type(value) is not str:
            return -1
        PyUnicode_AsUTF8AndSize(value, &size)
        return _width(_zigzag(size)) + size
    if kind == _BYTES:
        return _width(_zigzag(PyBytes_GET_SIZE(value))) + PyBytes_GET_SIZE(value) if type(value) is bytes else -1
    if type(value) is not int:
        return -1
    number = value
    if kind == _INT and not -0x80000000 <= number <= 0x7FFFFFFF:
        return -1
    return _width(_zigzag(number))


cdef inline uint8_t* _put_flat(uint8_t* to, object value, uint8_t kind) except NULL:
    cdef Py_ssize_t size = 0
    cdef const char* text
    cdef double wide
    cdef float single
    if kind == _DOUBLE:
        wide = value
        memcpy(to, &wide, 8)
        return to + 8
    if kind == _FLOAT:
        single = <float><double>value
        memcpy(to, &single, 4)
        return to + 4
    if kind == _BOOLEAN:
        to[0] = value is True
        return to + 1
    if kind == _STRING:
        text = PyUnicode_AsUTF8AndSize(value, &size)
    elif kind == _BYTES:
        text, size = PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value)
    else:
        return _put(to, _zigzag(<int64_t>value))
    to = _put(to, _zigzag(size))
    memcpy(to, text, <size_t>size)
    return to + size


def write_flat(dict values not None, tuple names not None, bytes kinds not None):
    """Return a record's values encoded; None where one is missing or not just of its field's type."""
    cdef Py_ssize_t total = 0, size, index, count = len(names)
    cdef uint8_t kind
    cdef uint8_t* to
    cdef bytes made
    cdef list found = []
    if PyBytes_GET_SIZE(kinds) != count or not _IS_LITTLE_ENDIAN:
        return None
    try:
        for index in range(count):
            value = values[names[index]]
            kind = <uint8_t>PyBytes_AS_STRING(kinds)[index]
            found.append(value)
            if kind >= _NULL_FIRST:
                total += 1
                if value is None:
                    continue
            size = _flat_size(value, kind & 7)
            if size < 0:
                return None
            total += size
    except (KeyError, OverflowError, UnicodeEncodeError):
        return None
    made = PyBytes_FromStringAndSize(NULL, total)
    to = <uint8_t*>PyBytes_AS_STRING(made)
    for index in range(count):
        value = found[index]
        kind = <uint8_t>PyBytes_AS_STRING(kinds)[index]
        if kind >= _NULL_FIRST:
            to[0] = 2 if (value is None) == (kind >= _NULL_LAST) else 0
            to += 1
            if value is None:
                continue
        to = _put_flat(to, value, kind & 7)
    return made
