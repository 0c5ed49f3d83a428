"""The text of an RFC -> its sentences, without what is no prose: headings, headers of pages, tables, figures, code.

A page ends with a line such as "Mogul & Deering   [Page 3]" and begins with "RFC 1191   Path MTU Discovery   November 1990".
A paragraph is lines without an empty one between them.  It is prose if it ends as a sentence does, its lines begin at one
column (the first, or all but the first, may stand out or in), and there is hardly anything in it but words.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from sys import intern

_PAGE = re.compile(r"^(RFC \d+ .*\d{4}|.*\[Page [0-9ivx]+\])\s*$", re.IGNORECASE)
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z\"(])")
_WORD = re.compile(r"[a-z][a-z0-9]*(?:['-][a-z0-9]+)*|[0-9]+|[.,;:!?()]")
_GAP = re.compile(r"\S {3,}\S")
"""Columns of a table, or a figure."""
LEAST_LETTERS = 0.85
"""Of what is no space in a paragraph of prose."""


def sentences_of(text: str) -> Iterator[tuple[str, ...]]:
    """Lower-case words and marks, two words or more at a time."""
    for paragraph in paragraphs_of(text):
        for sentence in _SENTENCE_END.split(paragraph):
            words = _WORD.findall(sentence.lower())
            if sum(word[0].isalpha() for word in words) >= 2:
                # The same words come again and again: each is kept once.
                yield tuple(intern(word) for word in words)


def paragraphs_of(text: str) -> Iterator[str]:
    """Those of prose, each in one line."""
    lines: list[str] = []
    for line in [*text.replace("\f", "\n").splitlines(), ""]:
        if _PAGE.match(line):
            continue
        if line.strip():
            lines.append(line.rstrip())
            continue
        if lines and _is_prose(lines):
            # A word that was divided at the end of a line keeps its hyphen: most such words have one.
            yield " ".join(line.strip() for line in lines).replace("- ", "-")
        lines = []


def _is_prose(lines: list[str]) -> bool:
    indents = {len(line) - len(line.lstrip()) for line in lines[1:]}
    if len(lines) < 2 or len(indents) > 1 or lines[-1][-1] not in ".:?!":
        return False
    if any(_GAP.search(line) for line in lines):
        return False
    dense = "".join("".join(lines).split())
    return sum(letter.isalpha() or letter in ".,'-" for letter in dense) >= LEAST_LETTERS * len(dense)
