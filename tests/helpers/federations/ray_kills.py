"""Rounds on Ray while actors and whole nodes are killed at random moments: a twin says what must have come of them.

    PYTHONPATH=.:tests python tests/helpers/federations/ray_kills.py --rounds 1000

After every round a federation in one process trains exactly the clients whose updates were accepted.  Both servers have to
hold the same bits: an accepted update that was lost, or one that counted twice, would show in them.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from examples.three_ray_nodes import LoopbackCluster, loopback_cluster
from helpers.federations.tiny_federation import TinyFederation, state_bytes, tiny_plan
from ondevice.client.client import Client
from server_sim.engines import EngineSettings, open_engine
from server_sim.one_round import RoundAbandoned, run_round

CLIENTS = [3, 0, 1, 2]


class SlowClients:
    """The tiny federation's clients, slow enough to be killed while they train."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __call__(self) -> Callable[[int], Client]:
        federation = TinyFederation()

        def open_client(client_id: int) -> Client:
            time.sleep(self._seconds)
            return federation.client(client_id)

        return open_client


@dataclass
class Tally:
    """What happened."""

    rounds: int = 0
    updates: int = 0
    abandoned: int = 0
    actors_killed: int = 0
    nodes_killed: int = 0
    dropped: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Kills:
    """Of the rounds, how many cost an actor, and how many a node."""

    actors: float
    nodes: float


def endure(cluster: LoopbackCluster, nodes: list[Any], rounds: int, kills: Kills, seed: int) -> Tally:
    """`nodes` are those that may be killed; the head is not."""
    chance, tally = random.Random(seed), Tally()
    there, here = TinyFederation(), TinyFederation()
    settings = EngineSettings(len(nodes) + 1, 60, cluster.address, tally.notes.append)
    with open_engine("ray", SlowClients(0.02), settings) as link:
        for _ in range(rounds):
            plan = tiny_plan(there.state.round_index)
            killing = threading.Timer(
                chance.uniform(0, 0.08), _kill_one, (cluster, nodes, tally, chance, kills)
            )
            killing.start()
            try:
                report = run_round(there.state, plan, CLIENTS, link, there.aggregator())
                accepted = [client_id for client_id in CLIENTS if client_id not in report.dropped]
                assert report.num_updates == len(accepted)
                run_round(here.state, plan, accepted, here.link(), here.aggregator())
                tally.updates += report.num_updates
                tally.dropped += report.dropped.values()
            except RoundAbandoned:
                tally.abandoned += 1
            tally.rounds += 1
            assert state_bytes(there) == state_bytes(here), (
                f"round {plan.round_index}: not the accepted updates"
            )
            killing.join()
            _mend(cluster, nodes)
            if tally.rounds % 100 == 0:
                print(
                    f"{tally.rounds} rounds, {tally.actors_killed} actors, {tally.nodes_killed} nodes",
                    flush=True,
                )
    return tally


def _kill_one(
    cluster: LoopbackCluster, nodes: list[Any], tally: Tally, chance: random.Random, kills: Kills
) -> None:
    drawn = chance.random()
    if drawn < kills.nodes:
        cluster.kill(chance.choice(nodes))
        tally.nodes_killed += 1
    elif drawn < kills.nodes + kills.actors:
        actors = actor_processes()
        if actors:
            os.kill(chance.choice(actors), signal.SIGKILL)
            tally.actors_killed += 1


def actor_processes() -> list[int]:
    return [
        pid for pid, command in descendants(os.getpid()).items() if command.startswith("ray::ClientActor")
    ]


def descendants(ancestor: int) -> dict[int, str]:
    """Process -> its command line, of all that a process has started."""
    parents, commands = {}, {}
    for entry in os.scandir("/proc"):
        # Processes may end while they are looked at.
        with suppress(OSError):
            if entry.name.isdigit():
                pid, folder = int(entry.name), Path(entry.path)
                parents[pid] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                commands[pid] = (folder / "cmdline").read_text().replace("\0", " ")

    def descends(pid: int) -> bool:
        while pid in parents and pid != ancestor:
            pid = parents[pid]
        return pid == ancestor

    return {pid: command for pid, command in commands.items() if pid != ancestor and descends(pid)}


def _mend(cluster: LoopbackCluster, nodes: list[Any]) -> None:
    """A node that is gone comes back as another."""
    for number, node in enumerate(nodes):
        if not node.any_processes_alive() or node.dead_processes():
            cluster.remove(node)
            nodes[number] = cluster.add_node()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--actors", type=float, default=0.15, help="the share of rounds in which an actor is killed"
    )
    parser.add_argument(
        "--nodes", type=float, default=0.015, help="the share of rounds in which a node is killed"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    with loopback_cluster(nodes=1) as cluster:
        nodes = [cluster.add_node() for _ in range(2)]
        tally = endure(cluster, nodes, options.rounds, Kills(options.actors, options.nodes), options.seed)
    print(
        f"{tally.rounds} rounds, {tally.abandoned} of them abandoned; {tally.actors_killed} actors and "
        f"{tally.nodes_killed} nodes killed; {tally.updates} updates accepted, {len(tally.dropped)} clients dropped, "
        f"{len(tally.notes)} tried again: the state is that of the accepted updates after every round"
    )
    for words in (*tally.dropped, *tally.notes):
        print(f"  {words}")


if __name__ == "__main__":
    main()
