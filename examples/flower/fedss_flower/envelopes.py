"""What one Flower message carries: wire messages of some clients, each under the client's id and what it is.

Flower sees opaque bytes.  They travel as `Array`s of a serialisation type of our own: Flower cuts those into chunks (a
`ConfigRecord` would be one protobuf field, copied whole at every hop) and never looks into them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from flwr.app import Array, ArrayRecord, RecordDict

_STYPE = "fedss.wire"
_RECORD = "wire"


class Said(StrEnum):
    """What a client answers with."""

    QUESTION = "question"
    """It wants another answer before it can go on."""
    UPDATE = "update"
    FAILURE = "failure"


@dataclass(frozen=True)
class Conversation:
    """One client's conversation as far as it has come: the plan, and the answers to its questions."""

    client_id: int
    plan: bytes
    answers: tuple[bytes, ...] = ()


@dataclass(frozen=True)
class Reply:
    """How a client went on."""

    said: Said
    content: bytes


def pack_conversations(conversations: Sequence[Conversation]) -> RecordDict:
    named = {}
    for conversation in conversations:
        named[f"{conversation.client_id}.plan"] = conversation.plan
        for number, answer in enumerate(conversation.answers):
            named[f"{conversation.client_id}.answer.{number}"] = answer
    return _pack(named)


def unpack_conversations(content: RecordDict) -> list[Conversation]:
    named = _unpack(content)
    plans = [name.removesuffix(".plan") for name in named if name.endswith(".plan")]
    conversations = []
    for client in plans:
        numbers = range(sum(name.startswith(f"{client}.answer.") for name in named))
        answers = tuple(named[f"{client}.answer.{number}"] for number in numbers)
        conversations.append(Conversation(int(client), named[f"{client}.plan"], answers))
    return conversations


def pack_replies(replies: Mapping[int, Reply]) -> RecordDict:
    return _pack({f"{client_id}.{reply.said}": reply.content for client_id, reply in replies.items()})


def unpack_replies(content: RecordDict) -> dict[int, Reply]:
    """ValueError for what is none."""
    replies = {}
    for name, data in _unpack(content).items():
        client, _, said = name.partition(".")
        replies[int(client)] = Reply(Said(said), data)
    return replies


def _pack(named: Mapping[str, bytes]) -> RecordDict:
    arrays = {name: Array("uint8", (len(data),), _STYPE, data) for name, data in named.items()}
    return RecordDict({_RECORD: ArrayRecord(arrays)})


def _unpack(content: RecordDict) -> dict[str, bytes]:
    if _RECORD not in content.array_records:
        raise ValueError(f"the message has the records {list(content)}; expected {_RECORD!r}")
    return {name: array.data for name, array in content.array_records[_RECORD].items()}
