"""What a server's hash tables cost over 1,000,000 rows of 96 numbers: `python -m benchmarks.large_outputs`.

    a  a look-up for a client of 256 sentences: all inner products against the tables            at least 20
       the same with all 20 places of a sentence, as clients of `next_word` look rows up         at least 20
       the products of the former alone, without looking for the largest, against the tables     no target
       the share of rows at 30 degrees from a sentence's embedding that the tables find          no target
    b  a refresh after rounds: 10,000 rows moved against 1,000                                   at most 12
       1,000 rows moved: n = 1,000,000 against n = 100,000                                       at most 1.5
       tables made anew against a refresh of 1,000 rows                                          no target

K = 16 bits, L = 32 tables, 6,000 rows found at the most.  A look-up is both sides' work: the client hashes its embeddings,
the server reads the message and finds the rows.  The tables have been refreshed 20 times before, with 10,000 rows each, and
must find what tables made anew find.  A moved row has turned by about 2 degrees.  CPU time on one core, contenders in turn:
the median over the turns' ratios in a, sums over all turns in b, since merging runs is paid for by many refreshes.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ondevice.contract.hashing.simhash import SimHash
from ondevice.contract.messages.envelope import Envelope
from ondevice.contract.messages.lookup import Lookup, lookup_to_bytes
from ondevice.contract.vocabulary import FloatArray, IntArray
from server_sim.server.optimizers import FedAvg
from server_sim.server.row_index import ExactIndex, HashIndex, stored_blocks
from server_sim.server.row_table import RowTable

NUM_ROWS, DIM, SENTENCES, PLACES = 1_000_000, 96, 256, 20
MOVED = 1000
MAX_FOUND = 6000
SIMHASH = SimHash(num_bits=16, num_tables=32, dim=DIM, seed=0)
ENVELOPE = Envelope(round_index=0, client_id=0)
ONE_CORE = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


class Server:
    """A table of normal numbers and its hash tables; rows move."""

    def __init__(self, num_rows: int) -> None:
        self._random = np.random.default_rng(0)
        self._rows = self._random.standard_normal((num_rows, DIM), np.float32)
        self.table = RowTable.fresh(FedAvg(), self._rows)
        self.tables = HashIndex(self.table, SIMHASH, MAX_FOUND)

    def play(self, count: int) -> float:
        """A round that moves so many rows; the seconds that the refresh took."""
        ids = np.sort(self._random.choice(self.table.num_rows, count, replace=False))
        self.table.apply(ids, self._random.normal(0, 0.035, (count, DIM)).astype(np.float32), 0)
        return seconds(lambda: self.tables.refresh(ids))

    def near(self, ids: IntArray, angle: float) -> FloatArray:
        """A vector for each row, at this angle."""
        rows = _directions(self.table.stored(ids))
        away = self._random.standard_normal(rows.shape).astype(np.float32)
        away = _directions(away - (away * rows).sum(1, keepdims=True) * rows)
        turned: FloatArray = np.cos(angle) * rows + np.sin(angle) * away
        return turned.astype(np.float32)


def _directions(vectors: FloatArray) -> FloatArray:
    directions: FloatArray = vectors / np.sqrt((vectors * vectors).sum(1, keepdims=True))
    return directions


def seconds(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def look_ups(server: Server, num_queries: int, turns: int) -> tuple[float, float, float]:
    """a: exact / tables, products alone / tables, and the share of near rows found."""
    own = np.random.default_rng(1).choice(NUM_ROWS, num_queries, replace=False)
    queries = server.near(own, math.pi / 6)
    exact = ExactIndex(server.table, MAX_FOUND, by_angle=True)
    searched = lookup_to_bytes(ENVELOPE, Lookup(queries=queries))

    def hashed(index: HashIndex) -> IntArray:
        buckets = np.unique(SIMHASH.buckets_of_queries(queries))
        return index.find(ENVELOPE, lookup_to_bytes(ENVELOPE, Lookup(buckets, SIMHASH.fingerprint)))

    def multiply() -> None:
        for rows in stored_blocks(server.table):
            np.matmul(rows, queries.T)

    found = hashed(server.tables)
    assert np.array_equal(found, hashed(HashIndex(server.table, SIMHASH, MAX_FOUND)))
    assert np.isin(own, exact.find(ENVELOPE, searched)).all()
    whole, products = [], []
    for _ in range(turns):
        tables = seconds(lambda: hashed(server.tables))
        whole.append(seconds(lambda: exact.find(ENVELOPE, searched)) / tables)
        products.append(seconds(multiply) / tables)
    return statistics.median(whole), statistics.median(products), float(np.isin(own, found).mean())


def refreshes(rounds: int) -> tuple[float, float, float]:
    """b: 10 m rows / m rows, n / (n / 10), and everything anew / m rows."""
    contenders = {
        "many": (Server(NUM_ROWS), 10 * MOVED),
        "few": (Server(NUM_ROWS), MOVED),
        "few of few": (Server(NUM_ROWS // 10), MOVED),
    }
    spent = dict.fromkeys(contenders, 0.0)
    for _ in range(rounds):
        for name, (server, count) in contenders.items():
            spent[name] += server.play(count)
    server, _ = contenders["few"]
    anew = seconds(lambda: HashIndex(server.table, SIMHASH, MAX_FOUND))
    few = spent["few"]
    return spent["many"] / few, few / spent["few of few"], anew / (few / rounds)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=9, help="of each contender of a")
    parser.add_argument("--rounds", type=int, default=60, help="of each contender of b")
    parser.add_argument("--out", type=Path, help="also write the figures to this JSON file")
    options = parser.parse_args(arguments)
    if ONE_CORE.items() - os.environ.items():
        # numpy reads them when it is imported.
        again = [sys.executable, "-m", "benchmarks.large_outputs", *(arguments or sys.argv[1:])]
        return subprocess.run(again, env={**os.environ, **ONE_CORE}, check=False).returncode
    rows: list[dict[str, Any]] = []

    def tell(figure: str, value: float, **bound: float) -> None:
        target = "".join(f"({name.replace('_', ' ')} {limit:g})" for name, limit in bound.items())
        print(f"{figure:<76} {value:>8.2f}   {target}", flush=True)
        rows.append({"figure": figure, "value": value, **bound})

    server = Server(NUM_ROWS)
    for _ in range(20):
        server.play(10 * MOVED)
    exact, products, share = look_ups(server, SENTENCES, options.turns)
    tell("a look-up of 256 sentences: all inner products / tables", exact, at_least=20)
    of_places, _, _ = look_ups(server, SENTENCES * PLACES, -(-options.turns // 3))
    tell("a look-up of 20 places of each: all inner products / tables", of_places, at_least=20)
    tell("  the products alone / tables", products)
    tell("  share of the rows at 30 degrees that tables find", share)
    more, larger, anew = refreshes(options.rounds)
    tell("b refresh: 10,000 rows moved / 1,000", more, at_most=12)
    tell("b refresh of 1,000 rows: n = 1,000,000 / n = 100,000", larger, at_most=1.5)
    tell("  tables made anew / refresh of 1,000 rows", anew)
    if options.out:
        options.out.write_text(json.dumps(rows, indent=2) + "\n")
    return int(
        any(row["value"] < row.get("at_least", -1) or row["value"] > row.get("at_most", 1e9) for row in rows)
    )


if __name__ == "__main__":
    sys.exit(main())
