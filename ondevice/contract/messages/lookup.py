"""How a client finds the rows near its data before it asks for a slice: the messages between the two.

| kind   | from   | tensors                                                                                          |
|--------|--------|--------------------------------------------------------------------------------------------------|
| lookup | client | `buckets` I64 [k]: sorted, unique places in the server's hash tables, and `fingerprint` I64 [1] of  |
|        |        | the hash functions that lead there; or `queries` F32 [q, d]                                      |
| found  | server | `rows.<table>` I64 [s], `table.<table>` F32 [s, d]: the rows that lie there, perhaps none         |

They have the envelope of all messages (`ondevice.contract.messages.envelope`), and their readers raise `WireError` and
nothing else.
A bucket says little of a client's data; a query is an embedding itself, which only an exact search needs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ondevice.contract.hashing.simhash import SimHash
from ondevice.contract.messages.checked_tensors import WireError, expect_names, floats, integers
from ondevice.contract.messages.envelope import Envelope, decoded, encoded
from ondevice.contract.safetensors_file import Bfloat16, Tensor
from ondevice.contract.vocabulary import FloatArray, IntArray, Rows, check_row_ids

BUCKETS, FINGERPRINT, QUERIES = "buckets", "fingerprint", "queries"


@dataclass(frozen=True)
class Lookup:
    """Buckets, of hash functions with this fingerprint, or queries."""

    buckets: IntArray | None = None
    fingerprint: int = 0
    queries: FloatArray | None = None


def lookup_to_bytes(envelope: Envelope, lookup: Lookup) -> bytes:
    tensors: dict[str, Tensor] = {}
    if lookup.buckets is not None:
        tensors[BUCKETS] = lookup.buckets
        tensors[FINGERPRINT] = np.array([lookup.fingerprint], np.int64)
    if lookup.queries is not None:
        tensors[QUERIES] = lookup.queries
    return encoded("lookup", envelope, tensors)


def buckets_from_bytes(data: bytes, envelope: Envelope, simhash: SimHash) -> IntArray:
    """Of a client that hashes with these functions."""
    tensors = decoded(data, "lookup", envelope)
    expect_names(tensors, {BUCKETS, FINGERPRINT})
    fingerprint = int(integers(tensors, FINGERPRINT, (1,))[0])
    if fingerprint != simhash.fingerprint:
        raise WireError(
            f"the buckets are of hash functions with the fingerprint {fingerprint}; those of the server's tables have "
            f"{simhash.fingerprint}: the client has hashed for other tables, and must read this round's plan"
        )
    buckets = integers(tensors, BUCKETS, None)
    _check_ids(buckets, BUCKETS)
    if not buckets.size or buckets[-1] >= simhash.num_buckets:
        raise WireError(f"buckets reach to {buckets[-1:]}; expected 1 or more below {simhash.num_buckets}")
    return buckets


def queries_from_bytes(data: bytes, envelope: Envelope, dim: int) -> FloatArray:
    """Of a client that has the server search."""
    tensors = decoded(data, "lookup", envelope)
    expect_names(tensors, {QUERIES})
    queries = tensors[QUERIES]
    if isinstance(queries, Bfloat16) or queries.ndim != 2 or not len(queries):
        raise WireError(f"queries are not a list of vectors; expected F32 [q, {dim}], at least one")
    return floats(tensors, QUERIES, (len(queries), dim))


def found_to_bytes(envelope: Envelope, table: str, rows: Rows) -> bytes:
    return encoded("found", envelope, {f"rows.{table}": rows.ids, f"table.{table}": rows.values})


def found_from_bytes(data: bytes, envelope: Envelope, table: str, num_rows: int, dim: int) -> Rows:
    tensors = decoded(data, "found", envelope)
    expect_names(tensors, {f"rows.{table}", f"table.{table}"})
    ids = integers(tensors, f"rows.{table}", None)
    _check_ids(ids, table)
    if ids.size and ids[-1] >= num_rows:
        raise WireError(f"the rows of {table} reach to {ids[-1]}; expected ids below {num_rows}")
    return Rows(ids, floats(tensors, f"table.{table}", (len(ids), dim)))


def _check_ids(ids: IntArray, what: str) -> None:
    try:
        check_row_ids(ids)
    except ValueError as error:
        raise WireError(f"{what}: {error}") from None
