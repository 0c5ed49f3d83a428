"""One message `tf.train.Example` of the TensorFlow ecosystem, read without it: a feature of bytes by its name.

    Example    features = 1                 Features
    Features   feature = 1, repeated        entries of a map: key = 1, value = 2
    Feature    bytes_list = 1 | float_list = 2 | int64_list = 3
    BytesList  value = 1, repeated

A protocol buffer is a sequence of fields, each a number and a kind followed by its content; a message within is bytes with
their length before them.
"""

from __future__ import annotations

from collections.abc import Iterator

_VARINT, _EIGHT_BYTES, _BYTES, _FOUR_BYTES = 0, 1, 2, 5
_FIXED = {_EIGHT_BYTES: 8, _FOUR_BYTES: 4}


class ExampleError(ValueError):
    """What was read is no such message, or lacks the feature."""


def bytes_feature(example: bytes, name: str) -> bytes:
    """The one value of the feature `name`."""
    wanted = name.encode()
    for _, features in _parts(example, 1):
        for _, entry in _parts(features, 1):
            key, value = b"", b""
            for number, content in _parts(entry):
                if number == 1:
                    key = content
                elif number == 2:
                    value = content
            if key == wanted:
                return _only_value(value, name)
    raise ExampleError(f"has no feature {name!r}")


def _only_value(feature: bytes, name: str) -> bytes:
    values = [value for _, listed in _parts(feature, 1) for _, value in _parts(listed, 1)]
    if len(values) != 1:
        raise ExampleError(f"has {len(values)} values of bytes in the feature {name!r}, expected one")
    return values[0]


def _parts(message: bytes, only: int | None = None) -> Iterator[tuple[int, bytes]]:
    """The fields of bytes, by number; others are passed over."""
    place = 0
    while place < len(message):
        tag, place = _varint(message, place)
        number, kind = tag >> 3, tag & 7
        if kind == _BYTES:
            size, place = _varint(message, place)
            place += size
            if place <= len(message) and (only is None or number == only):
                yield number, message[place - size : place]
        elif kind == _VARINT:
            _, place = _varint(message, place)
        elif kind in _FIXED:
            place += _FIXED[kind]
        else:
            raise ExampleError(f"has a field of kind {kind}, which no protocol buffer has")
    if place != len(message):
        raise ExampleError(f"ends within a field: it has {len(message)} bytes of {place}")


def _varint(message: bytes, place: int) -> tuple[int, int]:
    """A whole number, seven bits a byte, the lowest first; and where it ends."""
    number, shift = 0, 0
    while place < len(message) and shift < 64:
        byte = message[place]
        number |= (byte & 0x7F) << shift
        place += 1
        shift += 7
        if byte < 0x80:
            return number, place
    raise ExampleError("ends within a number")
