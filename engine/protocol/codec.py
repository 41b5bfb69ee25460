"""MessagePack encoding of the messages of this package, and the protocol version with its rule.

A version is `(major, minor)`. Peers of the same major version are compatible: a higher minor
version only adds tags and fields with defaults. Unknown fields are skipped; a record with an
unknown event tag decodes to None and the caller counts it. Another major version is refused with an
error that names both versions.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from .events import AnomalyRaised, CommandApplied, Record
from .requests import AnyClientMessage, AnyHubMessage, Beat

PROTOCOL_VERSION: tuple[int, int] = (1, 1)
AGENTS_SINCE = (1, 1)
"""First version whose hubs keep agents within their limits."""
EVENT_TOPIC = b"e"
BEAT_TOPIC = b"b"

_encoder = msgspec.msgpack.Encoder()
_records = msgspec.msgpack.Decoder(Record)
_clients: msgspec.msgpack.Decoder[AnyClientMessage] = msgspec.msgpack.Decoder(AnyClientMessage)
_hubs: msgspec.msgpack.Decoder[AnyHubMessage] = msgspec.msgpack.Decoder(AnyHubMessage)
_beats = msgspec.msgpack.Decoder(Beat)
_head = msgspec.msgpack.Decoder(tuple[int, float, int, int, msgspec.Raw])
_LENGTH = struct.Struct("<I")
_TYPED_FIELDS = {
    CommandApplied.__name__: frozenset({"applied", "settings", "previous"}),
    AnomalyRaised.__name__: frozenset({"recommended"}),
}
"""Fields, by event, that a newer version may fill with what this one does not know."""


MAX_HISTORY_BYTES = 64 * 2**20
"""Largest size of the records of one `HistoryChunk`, unpacked."""
UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""The exceptions of msgspec for invalid bytes, including invalid UTF-8 and unlimited nesting."""


class DecodeError(ValueError):
    """The bytes are not a message of this protocol."""


def encode(message: msgspec.Struct) -> bytes:
    """Encode any message of this package as MessagePack.

    Lone surrogates, as in odd file names and arguments, are written as escapes.
    """
    try:
        return _encoder.encode(message)
    except UnicodeEncodeError:
        plain = msgspec.to_builtins(message, builtin_types=(bytes,))
        return _encoder.encode(without_surrogates(plain))


def without_surrogates(value: Any) -> Any:
    """Return dicts, lists and texts, however nested, with lone surrogates replaced by escapes.

    Tuples become lists; other values are returned as they are.
    """
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {without_surrogates(key): without_surrogates(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [without_surrogates(part) for part in value]
    return value


def decode_record(data: bytes) -> Record | None:
    """Decode a journal record; None when its event tag is unknown to this version.

    If this version cannot decode the typed commands of an event, such as the applied or the
    recommended ones, the event is returned without them; its text fields still describe them.

    Raises:
        DecodeError: the bytes are not a record, or its fields are not those of its event.
    """
    try:
        return _records.decode(data)
    except UNDECODABLE as error:
        peek_seq(data)
        if (record := _without_commands(data)) is not None:
            return record
        if "Invalid value" in str(error):
            return None
        raise DecodeError(str(error)) from None


def decode_readable(data: bytes) -> Record | None:
    """Decode a journal record, or return None if this version cannot read it for any reason."""
    try:
        return decode_record(data)
    except DecodeError:
        return None


def _without_commands(data: bytes) -> Record | None:
    """Decode a record without the typed commands and settings of its event.

    None for an event that has no such fields, and if its other fields cannot be decoded either.
    """
    try:
        *place, event = msgspec.msgpack.decode(
            data, type=tuple[int, float, int, int, dict[str, Any]]
        )
        typed = _TYPED_FIELDS.get(str(event.get("k")))  # a tag that is a list is not a key
        if typed is None:
            return None
        text = {name: value for name, value in event.items() if name not in typed}
        if recommended := _texts_alone(event.get("recommended")):
            text["recommended"] = recommended
        return msgspec.convert([*place, text], Record)
    except UNDECODABLE:
        return None


def _texts_alone(recommended: Any) -> list[dict[str, str]]:
    """Return the texts and reasons of recommended commands; one without a text is left out."""
    entries = recommended if isinstance(recommended, list) else []
    return [
        {name: one[name] for name in ("text", "why") if isinstance(one.get(name), str)}
        for one in entries
        if isinstance(one, dict) and isinstance(one.get("text"), str)
    ]


def peek_seq(data: bytes) -> int:
    """Return the sequence number of an encoded record without decoding its event.

    Raises:
        DecodeError: the bytes are not a record.
    """
    try:
        return _head.decode(data)[0]
    except UNDECODABLE as error:
        raise DecodeError(f"not a record: {error}") from None


def decode_client(data: bytes) -> AnyClientMessage:
    """Decode a viewer's request; raises DecodeError if it is invalid."""
    try:
        return _clients.decode(data)
    except UNDECODABLE as error:
        raise DecodeError(str(error)) from None


def decode_hub(data: bytes) -> AnyHubMessage:
    """Decode a hub's reply; raises DecodeError if it is invalid."""
    try:
        return _hubs.decode(data)
    except UNDECODABLE as error:
        raise DecodeError(str(error)) from None


def decode_beat(data: bytes) -> Beat:
    """Decode a heartbeat; raises DecodeError if it is invalid."""
    try:
        return _beats.decode(data)
    except UNDECODABLE as error:
        raise DecodeError(str(error)) from None


def pack_history(records: Iterable[bytes]) -> bytes:
    """Pack encoded records into the blob of a `HistoryChunk`."""
    return zlib.compress(b"".join(_LENGTH.pack(len(r)) + r for r in records), 1)


def unpack_history(blob: bytes) -> Iterator[bytes]:
    """Yield the encoded records in the blob of a `HistoryChunk`.

    Raises:
        DecodeError: the blob is damaged, or larger than `MAX_HISTORY_BYTES` when unpacked.
    """
    data = inflated(blob, MAX_HISTORY_BYTES, "a history") if blob else b""
    at = 0
    while at < len(data):
        end = at + _LENGTH.size
        end += int.from_bytes(data[at:end], "little")
        if end > len(data):
            raise DecodeError(f"a history of {len(data)} bytes ends inside a record")
        yield data[at + _LENGTH.size : end]
        at = end


def inflated(packed: bytes, limit_bytes: int, what: str) -> bytes:
    """Unpack zlib-compressed bytes that a peer sent; `what` names them in the error.

    Raises:
        DecodeError: they are damaged or truncated, or larger than `limit_bytes` when unpacked.
    """
    inflater = zlib.decompressobj()
    try:
        data = inflater.decompress(packed, limit_bytes)
    except zlib.error as error:
        raise DecodeError(f"{what} is damaged: {error}") from None
    if not inflater.eof:
        raise DecodeError(f"{what} is truncated or holds over {limit_bytes} bytes")
    return data
