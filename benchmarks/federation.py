"""What a federated round costs, as ratios measured in one run: `make bench`, or `python benchmarks/federation.py`.

    a  slice + aggregate + apply, K = 64, |S_k| = 170, d = 64: at n = 1,000,000 against n = 10,000     at most 1.15
       the same with the rows drawn from all n, of which more are then touched                        no target
    b  the bandwidth of that path against memcpy                                                      at least 0.5
    c  a simulated round against a bare torch loop doing the same local SGD steps                     at most 1.25
    d  peak memory of the server at K = 256 against K = 8                                             at most 1.1
    e  the bandwidth of decode + check + add of a 12 MB update against memcpy                         at least 0.5

CPU time of this process, contenders interleaved, medians.  Every pair is first checked to do the same work.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from ondevice.backends.eager import EagerBackend, initial_parameters
from ondevice.client.client import Client
from ondevice.client.local_training import LocalTask, epoch_batches
from ondevice.client.samplers import SamplingView
from ondevice.client.samplers.uniform_negatives import UniformNegatives
from ondevice.client.weightings.uniform import Uniform
from ondevice.contract import wire
from ondevice.contract.choice import Choice
from ondevice.contract.link import Ask
from ondevice.contract.vocabulary import (
    COLUMNS,
    IMAGES,
    ClientUpdate,
    ExampleSet,
    FloatArray,
    LocalTraining,
    Parameters,
    RoundPlan,
    Rows,
    StepSpec,
)
from ondevice.model.extractors import build_extractor
from ondevice.model.objectives.sampled_softmax import class_logits
from server_sim.engines.in_process import InProcessLink
from server_sim.one_round import run_round
from server_sim.server.aggregation import Aggregator
from server_sim.server.optimizers import FedAvg, FedAvgM, ServerOptimizer
from server_sim.server.row_table import RowTable
from server_sim.server.state import ServerState

CLIENTS, WIDTH, DIM = 64, 170, 64
BLOCK_BYTES = CLIENTS * WIDTH * DIM * 4
"""All the columns that the clients of a round hold."""


@dataclass(frozen=True)
class Figure:
    """A ratio that was measured, and the most or the least that it should be, if there is such a bound."""

    figure: str
    ratio: float
    at_most: float | None = None
    at_least: float | None = None

    @property
    def target(self) -> str:
        if self.at_most is not None:
            return f"at most {self.at_most:.2f}"
        return "" if self.at_least is None else f"at least {self.at_least:.2f}"

    @property
    def missed(self) -> bool:
        if self.at_most is not None and self.ratio > self.at_most:
            return True
        return self.at_least is not None and self.ratio < self.at_least


def fedss_plan(num_classes: int, num_negatives: int, training: LocalTraining) -> RoundPlan:
    sampler = Choice("uniform_negatives", {"num_negatives": num_negatives})
    return RoundPlan(0, {COLUMNS: num_classes}, sampler, Choice("uniform"), local_training=training)


def interleaved(contenders: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Median CPU seconds of each, taken in turns so that a slow spell of the machine meets all of them."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(repeats + 2):
        for name, run in contenders.items():
            started = time.process_time()
            run()
            seconds[name].append(time.process_time() - started)
    return {name: float(np.median(values[2:])) for name, values in seconds.items()}


class ColumnPath:
    """Slice, aggregate and apply for one round's columns.  Clients ask for `asked_for` of all columns, spread at random."""

    def __init__(self, num_classes: int, optimizer: ServerOptimizer, asked_for: int) -> None:
        rng = np.random.default_rng(0)
        self._table = RowTable.fresh(optimizer, rng.standard_normal((num_classes, DIM), np.float32))
        self._aggregator = Aggregator({}, {COLUMNS: (num_classes, DIM)}, "selected")
        self._updates = []
        columns = np.sort(np.random.default_rng(1).choice(num_classes, asked_for, replace=False))
        for _ in range(CLIENTS):
            ids = columns[np.sort(rng.choice(asked_for, WIDTH, replace=False))]
            delta = Rows(ids, rng.standard_normal((WIDTH, DIM), np.float32))
            self._updates.append(ClientUpdate({}, {COLUMNS: delta}, num_examples=100, mean_loss=1.0))
        self._round = 0

    def __call__(self) -> None:
        for update in self._updates:
            self._table.read(update.tables[COLUMNS].ids, self._round)
        self._aggregator.start()
        for update in self._updates:
            self._aggregator.add(update)
        mean = self._aggregator.mean().tables[COLUMNS]
        self._table.apply(mean.ids, mean.delta, self._round)
        self._round += 1


def column_path(repeats: int) -> list[Figure]:
    """a and b.

    In a, both sizes do the same work: what clients ask for at n = 10,000 is spread over 1,000,000 columns, so that 6,663
    distinct columns are touched either way and nothing but n differs.  Drawn from all 1,000,000, clients hold next to none
    in common and 10,814 are touched, 1.6 times as many to apply: that ratio stands beside it, and says what a round costs
    there, but not what n does to it.

    Bytes of b, where all are drawn from n, are counted as memcpy counts them, one read and one write as one byte moved: a
    gather is 1; taking an update into the sums is 1 (hardly any column comes twice); dividing them is 1; applying them reads
    two and writes one, 1.5; the moments of FedAvgM are read with the slice (0.5) and read and written when applied (1)."""
    few, many = 10_000, 1_000_000
    source = np.ones(16 << 20, np.float32)
    target = np.empty_like(source)
    rows: list[Figure] = []
    for optimizer, blocks_moved in ((FedAvg(), 4.5), (FedAvgM(), 6.0)):
        # A round takes two milliseconds: there is time for many.
        seconds = interleaved(
            {
                "small": ColumnPath(few, optimizer, few),
                "spread": ColumnPath(many, optimizer, few),
                "large": ColumnPath(many, optimizer, many),
                "memcpy": lambda: np.copyto(target, source),
            },
            4 * repeats,
        )
        name = type(optimizer).__name__
        growth = {contender: seconds[contender] / seconds["small"] for contender in ("spread", "large")}
        bandwidth = blocks_moved * BLOCK_BYTES / seconds["large"]
        memcpy = source.nbytes / seconds["memcpy"]
        rows.append(Figure(f"a {name}: n = 1,000,000 / n = 10,000", growth["spread"], at_most=1.15))
        rows.append(Figure(f"{name}: the same, 1.6 times the columns touched", growth["large"]))
        rows.append(Figure(f"b {name}: columns moved / memcpy", bandwidth / memcpy, at_least=0.5))
    return rows


def simulated_round(repeats: int) -> list[Figure]:
    """c: 8 clients of 130 images, as in glyphs-2028, with the extractor of the glyphs experiments."""
    torch.set_num_threads(1)
    num_classes, num_clients = 2028, 8
    spec = StepSpec("three_convolutions", DIM, (1, 32, 32))
    initial = initial_parameters(spec, 0)
    rng = np.random.default_rng(0)
    columns = rng.standard_normal((num_classes, DIM), np.float32)
    data = []
    for _ in range(num_clients):
        held = rng.choice(num_classes, 90, replace=False)
        images = rng.integers(0, 256, (130, 1, 32, 32), np.uint8)
        data.append(ExampleSet({IMAGES: images}, rng.choice(held, 130).astype(np.int64)))
    plan = fedss_plan(num_classes, 80, LocalTraining(learning_rate=0.05))
    backend = EagerBackend(spec, initial)

    def federated() -> Parameters:
        dense = {name: value.copy() for name, value in initial.items()}
        state = ServerState.fresh(FedAvg(), dense, {COLUMNS: columns.copy()})
        link = InProcessLink(lambda k: Client(k, data[k], k, lambda: backend))
        shapes = {COLUMNS: (num_classes, DIM)}
        aggregator = Aggregator(backend.signature.dense_shapes, shapes, "selected")
        run_round(state, plan, range(num_clients), link, aggregator)
        return state.dense

    def bare_loop() -> dict[str, FloatArray]:
        """The same steps in as few lines of torch as possible: no wire, no server, but the mean that checks the result."""
        mean = {name: np.zeros_like(value) for name, value in initial.items()}
        for k, examples in enumerate(data):
            extractor = build_extractor(spec)
            extractor.load_state_dict(
                {name: torch.from_numpy(value.copy()) for name, value in initial.items()}
            )
            view = SamplingView(plan, examples.labels, k)
            sample = UniformNegatives(80).draw(view)
            ids = sample.ids[COLUMNS]
            w = torch.nn.Parameter(torch.from_numpy(columns[ids]))
            adjust = torch.from_numpy(sample.sides["adjust"])
            labels = np.searchsorted(ids, examples.labels)
            optimizer = torch.optim.SGD([*extractor.parameters(), w], lr=0.05)
            task = LocalTask(plan, examples, np.arange(len(examples)), Uniform(), k)
            for batch in epoch_batches(task):
                images = torch.from_numpy(examples.features[IMAGES][batch])
                logits = class_logits(extractor(images), w, "cosine") + adjust
                loss = torch.nn.functional.cross_entropy(logits, torch.from_numpy(labels[batch]))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            for name, value in extractor.named_parameters():
                mean[name] += value.detach().numpy() / num_clients
        return mean

    ours, theirs = federated(), bare_loop()
    for name, value in ours.items():
        assert np.linalg.norm(value - theirs[name]) < 1e-3 * np.linalg.norm(value - initial[name]), name
    seconds = interleaved({"federated": federated, "bare": bare_loop}, repeats)
    ratio = seconds["federated"] / seconds["bare"]
    return [Figure("c simulated round / bare torch loop", ratio, at_most=1.25)]


def server_peak(num_clients: int) -> None:
    """The child process of d: one round of MobileNetV3-Large updates through wire and server; prints its peak."""
    num_classes = 10_000
    spec = StepSpec(image_shape=(3, 32, 32))
    extractor = initial_parameters(spec, 0)
    rng = np.random.default_rng(0)
    columns = rng.standard_normal((num_classes, DIM), np.float32)
    state = ServerState.fresh(FedAvgM(), extractor, {COLUMNS: columns})
    shapes = {name: value.shape for name, value in extractor.items()}
    delta = {name: np.full_like(value, 1e-3) for name, value in extractor.items()}
    plan = fedss_plan(num_classes, WIDTH, LocalTraining())

    class Sender:
        """Answers with a ready-made update, so that only the server's memory is measured."""

        def __init__(self, client_id: int) -> None:
            self._envelope = wire.Envelope(0, client_id)
            self._ids = np.sort(np.random.default_rng(client_id).choice(num_classes, WIDTH, replace=False))

        def converse(self, plan: RoundPlan, ask: Ask) -> bytes:  # noqa: ARG002 - a client's signature
            ask(wire.request_to_bytes(self._envelope, {COLUMNS: self._ids}))
            rows = Rows(self._ids, np.zeros((WIDTH, DIM), np.float32))
            return wire.update_to_bytes(self._envelope, ClientUpdate(delta, {COLUMNS: rows}, 100, 1.0))

    aggregator = Aggregator(shapes, {COLUMNS: (num_classes, DIM)}, "selected")
    run_round(state, plan, range(num_clients), InProcessLink(Sender), aggregator)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def server_memory() -> list[Figure]:
    """d"""
    peaks = {}
    for num_clients in (8, 256):
        command = [sys.executable, __file__, "--server-peak", str(num_clients)]
        peaks[num_clients] = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return [Figure("d server's peak memory, K = 256 / K = 8", peaks[256] / peaks[8], at_most=1.1)]


def update_path(repeats: int) -> list[Figure]:
    """e: the updates of 8 clients, MobileNetV3-Large and |S_k| rows each, so that none waits in the cache for its turn."""
    num_classes, num_clients = 10_000, 8
    extractor = initial_parameters(StepSpec(image_shape=(3, 32, 32)), 0)
    shapes = {name: value.shape for name, value in extractor.items()}
    expected = wire.Expected(shapes, {COLUMNS: num_classes}, {COLUMNS: DIM})
    rng = np.random.default_rng(0)
    messages = []
    for k in range(num_clients):
        ids = np.sort(rng.choice(num_classes, WIDTH, replace=False))
        rows = Rows(ids, rng.standard_normal((WIDTH, DIM), np.float32))
        dense = {
            name: 1e-2 * rng.standard_normal(value.shape, np.float32) for name, value in extractor.items()
        }
        envelope = wire.Envelope(0, k)
        message = wire.update_to_bytes(envelope, ClientUpdate(dense, {COLUMNS: rows}, 100, 1.0))
        messages.append((message, envelope, {COLUMNS: ids}))
    aggregator = Aggregator(shapes, {COLUMNS: (num_classes, DIM)}, "selected")

    def take() -> None:
        for message, envelope, ids in messages:
            aggregator.add(wire.update_from_bytes(message, envelope, ids, expected))

    aggregator.start()
    source = np.ones(sum(len(message) for message, *_ in messages), np.uint8)
    target = np.empty_like(source)
    seconds = interleaved({"take": take, "memcpy": lambda: np.copyto(target, source)}, repeats)
    ratio = seconds["memcpy"] / seconds["take"]
    return [Figure("e decode + check + add / memcpy", ratio, at_least=0.5)]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--out", type=Path, help="also write the figures to this JSON file")
    parser.add_argument("--server-peak", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.server_peak:
        server_peak(options.server_peak)
        return 0
    rows = [*column_path(options.repeats), *simulated_round(options.repeats), *server_memory()]
    rows += update_path(options.repeats)
    for row in rows:
        print(f"{row.figure:<50} {row.ratio:6.2f}   ({row.target})")
    if options.out:
        written = [{name: value for name, value in asdict(row).items() if value is not None} for row in rows]
        options.out.write_text(json.dumps(written, indent=2) + "\n")
    return 1 if any(row.missed for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
