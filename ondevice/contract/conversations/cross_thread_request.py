"""A client's question on its way from the thread that holds its conversation to the server's, and the answer back.

Answers touch the server's state, so they are given in the server's thread alone.
"""

from __future__ import annotations

import queue

from ondevice.contract.link import Answer


class Abandoned(RuntimeError):
    """Nobody answers any more: the round was given up."""


class CrossThreadRequest:
    """Made and waited for in one thread, answered or refused in another."""

    def __init__(self, client_id: int, question: bytes) -> None:
        self._client_id = client_id
        self._question = question
        self._answers: queue.SimpleQueue[bytes | Exception] = queue.SimpleQueue()

    def reply(self, answer: Answer) -> None:
        try:
            self._answers.put(bytes(answer(self._client_id, self._question)))
        except Exception as error:  # raised where it is waited for, so that no thread is left waiting
            self.refuse(error)

    def refuse(self, error: Exception) -> None:
        self._answers.put(error)

    def wait(self) -> bytes:
        answer = self._answers.get()
        if isinstance(answer, Exception):
            raise answer
        return answer
