"""A conversation with a server that is not there: its answers lie in a folder as files `0`, `1`, ...

The program ends at the first question that is not answered yet, and is started again once the answer has been put there.
Everything random is a function of seed and round, so the conversation comes to the same question again, and goes on.
"""

from __future__ import annotations

from pathlib import Path


class Unanswered(Exception):
    """The conversation cannot go on before this question is answered."""

    def __init__(self, question: bytes) -> None:
        super().__init__("the server has not answered yet")
        self.question = question


class Replay:
    """The server as far as it has spoken."""

    def __init__(self, answers: Path) -> None:
        self._answers = answers
        self._asked = 0

    def ask(self, question: bytes) -> bytes:
        answer = self._answers / str(self._asked)
        if not answer.exists():
            raise Unanswered(question)
        self._asked += 1
        return answer.read_bytes()
