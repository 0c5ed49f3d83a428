"""What a store hands out to be changed."""

from __future__ import annotations

from dataclasses import dataclass

from ondevice.contract.vocabulary import FloatArray, IntArray


@dataclass(frozen=True)
class OpenRows:
    """Row `ids[i]` is `records[places[i]]` and `current_at[places[i]]`: the store's own arrays with the ids for places, or
    copies of the rows that the store puts back once they are written."""

    records: FloatArray
    current_at: IntArray
    places: IntArray
