"""What every lowering raises for an operator that it cannot write; the caller need not know which lowering it was."""

from __future__ import annotations


class UnsupportedOperator(ValueError):
    """A runtime has no formulation for an operator of the model; the message names it and says what to do."""
