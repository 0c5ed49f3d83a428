"""What the first tokens of every vocabulary mean.  Rows of a table of words are its tokens: row 0 is padding, and so on.

A sampler of words asks for these rows always.  Row ids are sorted, so among the rows of any slice they have the positions
that they have in the table: position 0 is padding wherever tokens are positions.
"""

TOKENS = "tokens"
"""The feature of texts: int64 [N, length], ids of words, padding behind the last."""

PADDING, UNKNOWN, BEGIN, END = range(4)
"""Behind the last token of a shorter sequence; a word outside the vocabulary; before a text; kept for what may stand
behind one."""

NUM_SPECIAL = 4
"""They are read, but never predicted: neither targets nor what a target competes with."""
