"""What a table of 10,000,000 rows costs a server whose memory it does not fit: `python -m benchmarks.large_table`.

    a  peak memory of training, n = 10,000,000, d = 128, FedAvgM, K = 64, |S| = 170, in GB           at most 1.5
       and of a state that has touched 1,632,000 rows, 1.7 GB of files                              at most 1.5
    b  a round's server work on mapped files, n = 10,000,000, against memory, n = 1,000,000         at most 1.5
    c  keeping a round and a checkpoint, the same rows touched: n = 10,000,000 against 100,000      at most 1.15
    d  bytes on the disk against those of the rows that were touched                                at most 1.25
       (without the journal, which keeps the room of the most that it held: 256 MB and a round)
    e  servers killed at random moments whose files were not the same, bit for bit, as if undisturbed:
       180 with n = 2,000 and 20 with n = 10,000,000 (`benchmarks.killed_server`)                     none

Server work is everything but the clients: requests read, slices gathered, encoded and joined, updates of a MobileNetV3-Large
decoded, checked and added, the mean applied, the round kept, and a checkpoint whenever the journal is due for one.  CPU
time of this process, contenders in turns, sums over all rounds.  Warm: a round's rows are some of 100,000 that were
touched before.  What rows cost that are touched for the first time, and rows alone without an extractor, is printed too.
Takes about 3 GB of disk, which are given back.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from benchmarks.killed_server import DIM, Size, fresh_state, kill_servers
from ondevice.backends.eager import EagerBackend, initial_parameters
from ondevice.contract import wire
from ondevice.contract.choice import Choice
from ondevice.contract.link import Answer, ClientFailure
from ondevice.contract.vocabulary import (
    COLUMNS,
    ClientUpdate,
    IntArray,
    LocalTraining,
    Parameters,
    RoundPlan,
    Rows,
    StepSpec,
)
from server_sim.data.population import Population
from server_sim.engines.in_process import InProcessLink
from server_sim.engines.simulated_clients import SimulatedClients
from server_sim.experiment import load_experiment
from server_sim.one_round import run_round
from server_sim.server.aggregation import AggregatedRows, AggregatedUpdate, Aggregator
from server_sim.server.state import ServerState
from server_sim.simulation import Simulation

NUM_ROWS, CLIENTS, WIDTH, HOT = 10_000_000, 64, 170, 100_000


def opened(folder: Path, num_rows: int, store: str, dense: Parameters) -> ServerState:
    state = fresh_state(folder, num_rows, store, dense)
    folder.mkdir()
    state.begin(folder / "state")
    return state


class Senders:
    """A link to clients that answer with ready-made updates; what they take of the time is told apart."""

    def __init__(self, delta: Parameters, ids_of_round: Iterable[IntArray]) -> None:
        self._delta = delta
        self._ids = iter(ids_of_round)
        self._rows = np.random.default_rng(0).standard_normal((WIDTH, DIM), np.float32) * np.float32(1e-3)
        self.seconds = 0.0

    def exchange(
        self, plan: RoundPlan, client_ids: Sequence[int], answer: Answer
    ) -> Iterator[tuple[int, bytes | ClientFailure]]:
        started = time.process_time()
        ids = next(self._ids).reshape(len(client_ids), WIDTH)
        for client_id, own in zip(client_ids, ids, strict=True):
            envelope = wire.Envelope(plan.round_index, client_id)
            request = wire.request_to_bytes(envelope, {COLUMNS: own})
            self.seconds += time.process_time() - started
            # Joined, as for a client in this process.
            bytes(answer(client_id, request))
            started = time.process_time()
            update = ClientUpdate(self._delta, {COLUMNS: Rows(own, self._rows)}, 100, 1.0)
            message = wire.update_to_bytes(envelope, update)
            self.seconds += time.process_time() - started
            yield client_id, message
            started = time.process_time()


def drawn(among: IntArray | int) -> Iterator[IntArray]:
    """The rows of a round's clients, each client's sorted."""
    rng = np.random.default_rng(1)
    while True:
        of_clients = [np.sort(rng.choice(among, WIDTH, replace=False)) for _ in range(CLIENTS)]
        yield np.concatenate(of_clients)


class Contender:
    """One server, played round by round."""

    def __init__(self, state: ServerState, path: Path, ids: Iterable[IntArray]) -> None:
        self._state, self._path = state, path
        delta = {name: np.full(shape, 1e-3, np.float32) for name, shape in state.dense.shapes.items()}
        self._senders = Senders(delta, ids)
        shapes = {COLUMNS: (state.tables[COLUMNS].num_rows, DIM)}
        self._aggregator = Aggregator(state.dense.shapes, shapes, "selected")
        self.seconds = 0.0

    def play(self) -> None:
        state, started, of_clients = self._state, time.process_time(), self._senders.seconds
        sampler = Choice("uniform_negatives", {"num_negatives": WIDTH})
        plan = RoundPlan(
            state.round_index, state.table_sizes, sampler, Choice("uniform"), local_training=LocalTraining()
        )
        report = run_round(state, plan, range(CLIENTS), self._senders, self._aggregator)
        assert report.num_updates == CLIENTS
        state.commit({"round": plan.round_index})
        if state.is_due(save_every=1 << 30):
            state.save(self._path)
        self.seconds += time.process_time() - started - (self._senders.seconds - of_clients)


def touch(state: ServerState, ids: IntArray) -> None:
    """A round for rows that are given."""
    rows = AggregatedRows(ids, np.full((len(ids), DIM), 1e-3, np.float32))
    state.apply(AggregatedUpdate(state.dense, {COLUMNS: rows}, 1, 0.0))
    state.commit({})


def server_work(folder: Path, dense: Parameters, rounds: int, warm: bool) -> float:
    """b: what the mapped store takes, in parts of what memory takes."""
    sizes = {"mapped": NUM_ROWS, "memory": NUM_ROWS // 10}
    contenders = {}
    for store, num_rows in sizes.items():
        state = opened(folder / store, num_rows, store, dense)
        hot = np.random.default_rng(0).choice(num_rows, HOT, replace=False)
        if warm:
            touch(state, hot)
        contenders[store] = Contender(state, folder / store / "state", drawn(hot if warm else num_rows))
    for _ in range(5):
        for contender in contenders.values():
            contender.play()
    for contender in contenders.values():
        contender.seconds = 0.0
    for _ in range(rounds):
        for contender in contenders.values():
            contender.play()
    return contenders["mapped"].seconds / contenders["memory"].seconds


def keeping(folder: Path, repeats: int) -> tuple[float, float]:
    """c and d."""
    seconds: dict[int, list[float]] = {}
    states = {
        num_rows: opened(folder / str(num_rows), num_rows, "mapped", {"w": np.zeros(1, np.float32)})
        for num_rows in (100_000, NUM_ROWS)
    }
    rng = np.random.default_rng(2)
    hot = {num_rows: rng.choice(num_rows, HOT, replace=False) for num_rows in states}
    for num_rows, state in states.items():
        touch(state, hot[num_rows])
        state.save(folder / str(num_rows) / "state")
    for _ in range(repeats + 2):
        for num_rows, state in states.items():
            ids = rng.choice(hot[num_rows], CLIENTS * WIDTH, replace=False)
            started = time.process_time()
            touch(state, ids)
            state.save(folder / str(num_rows) / "state")
            seconds.setdefault(num_rows, []).append(time.process_time() - started)
    small, large = (float(np.median(values[2:])) for values in seconds.values())
    files = (folder / str(NUM_ROWS) / "tables").glob(f"{COLUMNS}.*")
    on_disk = sum(512 * path.stat().st_blocks for path in files)
    return large / small, on_disk / (HOT * 2 * DIM * 4)


def peak_of_a_run(folder: Path, rounds: int) -> None:
    """A child process of a: clients train on noise of 90 classes each."""
    torch.set_num_threads(1)
    shape, num_clients, held = (1, 32, 32), 100, 90
    rng = np.random.default_rng(0)
    labels = np.concatenate([rng.choice(NUM_ROWS, held, replace=False) for _ in range(num_clients)])
    arrays = {
        "client_images": rng.integers(0, 256, (len(labels), *shape), np.uint8),
        "client_labels": labels,
        "client_offsets": np.arange(0, len(labels) + 1, held),
        "test_images": rng.integers(0, 256, (64, *shape), np.uint8),
        "test_labels": labels[:64],
    }
    manifest = {"name": "noise", "num_classes": NUM_ROWS, "image_shape": shape, "recipe": {}, "seed": 0}
    manifest |= {"class_names": [], "client_names": [str(client) for client in range(num_clients)]}
    population = Population(folder, manifest, arrays)
    changes = ["server.store=mapped", "server.optimizer=fedavgm", f"server.clients_per_round={CLIENTS}"]
    changes += [f"server.rounds={rounds}", "evaluation.every=1000", "model.pretrained=none"]
    changes += [f"model.embedding_dim={DIM}", f"scheme.num_negatives={WIDTH - held}"]
    experiment = load_experiment("glyphs-tiny", changes)
    spec = StepSpec("three_convolutions", DIM, shape)
    initial = initial_parameters(spec, 0)
    backend = EagerBackend(spec, initial)
    link = InProcessLink(SimulatedClients(population, backend, 0))
    lines: list[dict[str, object]] = []
    Simulation(experiment, population, backend, initial, link, folder / "run").run(False, lines.append)
    assert lines[-1]["num_updates"] == CLIENTS
    assert lines[-1]["mean_width"] == WIDTH
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


def peak_of_a_state(folder: Path, rounds: int) -> None:
    """The other one: every round touches rows that no other did, and reads some of all."""
    state = opened(folder / "state", NUM_ROWS, "mapped", {"w": np.zeros(1, np.float32)})
    every = np.random.default_rng(0).permutation(NUM_ROWS)[: 150 * CLIENTS * WIDTH].reshape(rounds, -1)
    for ids in every:
        touch(state, ids)
        if state.is_due(1):
            state.save(folder / "saved")
        state.tables[COLUMNS].read(np.random.default_rng(0).choice(every.reshape(-1), 50_000), 0)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


KILLS = {180: Size(2000, 1500, 400, 0.4), 20: Size(NUM_ROWS, 50_000, CLIENTS * WIDTH, 3.0)}
PEAKS = {"training": (peak_of_a_run, 3), "1,632,000 rows touched": (peak_of_a_state, 50)}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=20, help="that are timed, of each contender")
    parser.add_argument("--parts", default="abcde", help="which of the figures above")
    parser.add_argument("--out", type=Path, help="also write the figures to this JSON file")
    parser.add_argument("--folder", type=Path, help="where the files lie while it runs")
    parser.add_argument("--peak", choices=PEAKS, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.peak:
        measure, rounds = PEAKS[options.peak]
        measure(options.folder, rounds)
        return 0
    if options.folder:
        options.folder.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []

    def tell(figure: str, value: float, at_most: float | None = None) -> None:
        target = "(for comparison)" if at_most is None else f"(at most {at_most:g})"
        shown = f"{value:,}" if isinstance(value, int) else f"{value:.2f}"
        print(f"{figure:<72} {shown:>6}   {target}", flush=True)
        rows.append({"figure": figure, "value": value} | ({} if at_most is None else {"at_most": at_most}))

    def work(dense: Parameters, warm: bool) -> float:
        with TemporaryDirectory(dir=options.folder) as path:
            return server_work(Path(path), dense, options.rounds, warm)

    for peak in PEAKS if "a" in options.parts else ():
        with TemporaryDirectory(dir=options.folder) as path:
            command = [sys.executable, "-m", "benchmarks.large_table", "--peak", peak, "--folder", path]
            ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            tell(f"a peak of memory, {peak}, in GB", int(ended.stdout.split()[-1]) / 1e9, 1.5)
    if "b" in options.parts:
        extractor = initial_parameters(StepSpec(embedding_dim=DIM, image_shape=(3, 32, 32)), 0)
        tell("b server work: mapped / memory", work(extractor, warm=True), 1.5)
        tell("  rows touched for the first time: mapped / memory", work(extractor, warm=False))
        tell(
            "  warm rows without an extractor: mapped / memory",
            work({"w": np.zeros(1, np.float32)}, warm=True),
        )
    if "c" in options.parts or "d" in options.parts:
        with TemporaryDirectory(dir=options.folder) as path:
            growth, disk = keeping(Path(path), options.rounds)
        tell("c keeping a round and a checkpoint: n = 10,000,000 / n = 100,000", growth, 1.15)
        tell("d bytes on the disk / bytes of the rows touched", disk, 1.25)
    for kills, size in KILLS.items() if "e" in options.parts else ():
        with TemporaryDirectory(dir=options.folder) as path:
            found = kill_servers(Path(path), size, kills)
        tell(f"e {kills} kills, n = {size.num_rows:,}: not recovered", found.kills - found.recovered, 0)
        tell("  of these before the server had kept a round of its own", found.in_recovery)
        tell("  of these in the middle of a record", found.in_a_record)
        tell("  rounds kept in all", found.rounds)
    if options.out:
        options.out.write_text(json.dumps(rows, indent=2) + "\n")
    return int(any("at_most" in row and not row["value"] <= row["at_most"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
