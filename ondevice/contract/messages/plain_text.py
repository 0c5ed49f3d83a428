"""Words of a stranger, made fit to keep: one line of printable characters, of limited length.

What a client sends ends up in reasons: on the terminal, in metrics.jsonl, in a report.  A name of a megabyte, an escape
sequence that paints the terminal or half a surrogate pair that no file can hold must not get that far.
"""

from __future__ import annotations

MAX_CHARACTERS = 200


def plain_text(text: str, max_characters: int = MAX_CHARACTERS) -> str:
    """The text with everything that is not printable written as Python would escape it, cut in the middle if too long."""
    # Cut before and after: escapes are longer than what they stand for, and a megabyte is not worth escaping.
    escaped = "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode("ascii")
        for letter in _cut(text, 4 * max_characters)
    )
    return _cut(escaped, max_characters)


def _cut(text: str, max_characters: int) -> str:
    """Beginning and end say most: what it is about, and what was expected instead."""
    if len(text) <= max_characters:
        return text
    gap = " ... "
    tail = max_characters // 3
    return text[: max_characters - tail - len(gap)] + gap + text[-tail:]
