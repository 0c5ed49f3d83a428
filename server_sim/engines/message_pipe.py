"""Messages between the server and one worker process: each is four bytes that say how many follow, one that says what it is,
and the content.

A message goes out in the pieces that it comes in, and comes in by one call of the system.  The system keeps as much of it as
it allows, so that the sender need not wait until the receiver has its turn on a core, over and over.
"""

from __future__ import annotations

import socket
import struct

from ondevice.contract.safetensors_file import Array
from ondevice.contract.wire import MAX_MESSAGE_BYTES

_HEAD = struct.Struct("!Ic")
_KEPT_BYTES = 16 << 20
"""Asked of the system, which may allow less (net.core.wmem_max)."""


class PipeClosed(OSError):
    """The other end is not there any more, or sends what cannot be a message."""


class MessagePipe:
    """One end."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end

    @staticmethod
    def pair() -> tuple[MessagePipe, MessagePipe]:
        ends = socket.socketpair()
        for end in ends:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _KEPT_BYTES)
        return MessagePipe(ends[0]), MessagePipe(ends[1])

    def send(self, kind: bytes, *content: bytes | Array) -> None:
        """Content is bytes, or arrays of one dimension."""
        pieces = [
            memoryview(piece if isinstance(piece, bytes) else piece.data).cast("B") for piece in content
        ]
        waiting = [memoryview(_HEAD.pack(1 + sum(map(len, pieces)), kind)), *pieces]
        try:
            while waiting:
                sent = self._socket.sendmsg(waiting)
                # A signal may have ended the call before the last piece, or in the middle of one.
                while waiting and sent >= len(waiting[0]):
                    sent -= len(waiting.pop(0))
                if waiting:
                    waiting[0] = waiting[0][sent:]
        except OSError as error:
            raise PipeClosed(f"a message could not be sent: {error}") from error

    def receive(self) -> tuple[bytes, bytes]:
        """What the next message is, and its content."""
        size, kind = _HEAD.unpack(self._read(_HEAD.size))
        if not 1 <= size <= MAX_MESSAGE_BYTES + 1:
            raise PipeClosed(f"a message of {size} bytes; at most {MAX_MESSAGE_BYTES} are allowed")
        return kind, self._read(size - 1)

    def _read(self, size: int) -> bytes:
        parts: list[bytes] = []
        while size:
            try:
                # All of it, unless a signal comes or the other end is closed.
                part = self._socket.recv(size, socket.MSG_WAITALL)
            except OSError as error:
                raise PipeClosed(f"no message could be received: {error}") from error
            if not part:
                raise PipeClosed(f"the other end was closed {size} bytes before the end of a message")
            parts.append(part)
            size -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def is_closed(self) -> bool:
        return self._socket.fileno() < 0

    def close(self) -> None:
        self._socket.close()
