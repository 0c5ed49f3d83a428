"""Clients of a few classes each, all of about the same size, which share out every example between them.

FedSS deals Stanford Online Products so (596 clients of 100 images in 20 classes) and ImageNet-21k (25,691 clients of about
400 images in 20 classes).  The paper gives the sizes, not the procedure; this one meets them exactly.  There are as many
clients as the size asks for, and `classes_per_client` pieces for each.  Every class is cut into pieces, larger classes into
more, so that pieces are as equal as can be; the pieces are then dealt like cards.  As a class's pieces lie together in the
deck, and there are no more of them than clients, no client gets two.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np

from ondevice.contract.vocabulary import IntArray
from server_sim.data.partitioners.partitioner import Pool


@dataclass(frozen=True)
class FewClasses:
    examples_per_client: int
    classes_per_client: int = 20

    def __post_init__(self) -> None:
        if not 1 <= self.classes_per_client <= self.examples_per_client:
            raise ValueError(
                f"{self.classes_per_client} classes among {self.examples_per_client} examples: "
                "expected 1 or more, and an example for each"
            )

    def owners(self, pool: Pool, rng: np.random.Generator) -> IntArray:
        counts = np.bincount(pool.labels)
        held = np.flatnonzero(counts)
        num_clients = max(
            -(-len(pool.labels) // self.examples_per_client), -(-len(held) // self.classes_per_client)
        )
        num_pieces = _num_pieces(counts[held], num_clients * self.classes_per_client, num_clients)
        shuffled = rng.permutation(len(pool.labels))
        by_class = np.split(
            shuffled[np.argsort(pool.labels[shuffled], kind="stable")], np.cumsum(counts)[:-1]
        )
        owners = np.empty(len(pool.labels), np.int64)
        card = 0
        for number in rng.permutation(len(held)).tolist():
            for piece in np.array_split(by_class[held[number]], num_pieces[number]):
                owners[piece] = card % num_clients
                card += 1
        return owners


def _num_pieces(counts: IntArray, wanted: int, most: int) -> list[int]:
    """Pieces of each class, one at least: the class whose pieces are largest is cut once more until there are enough.

    No class is cut into more than `most`, or more than it has examples; where that leaves too few pieces, so be it.
    """
    pieces = [1] * len(counts)
    heap = [(-count / 2, number) for number, count in enumerate(counts.tolist())]
    heapq.heapify(heap)
    for _ in range(wanted - len(counts)):
        while heap and pieces[heap[0][1]] >= min(most, counts[heap[0][1]]):
            heapq.heappop(heap)
        if not heap:
            break
        number = heap[0][1]
        pieces[number] += 1
        heapq.heapreplace(heap, (-float(counts[number]) / (pieces[number] + 1), number))
    return pieces
