"""Ray as an engine: three real nodes on this machine's loopback interface, some of which are killed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.data.tiny_population import make_tiny_population
from helpers.federations.ray_clients import (
    BAD_CLIENT,
    BAD_REQUEST,
    BUG,
    DIES,
    HANGS,
    HANGS_ON_ONE_NODE,
    ClientsWithData,
    FaultyClients,
)
from helpers.federations.ray_kills import Kills, descendants, endure
from helpers.federations.tiny_federation import TinyFederation, state_bytes, tiny_plan

import fedss
from examples.three_ray_nodes import LoopbackCluster, loopback_cluster
from ondevice.contract.link import Link
from ondevice.tools.cache_folder import default_cache_folder
from server_sim.engines import EngineError, EngineSettings, open_engine
from server_sim.engines.ray_session import environment
from server_sim.engines.travelling_folder import TravellingFolder
from server_sim.one_round import RoundReport, run_round

pytestmark = pytest.mark.slow
LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F"}
"""127.0.0.1 as /proc/net/tcp and tcp6 write it."""
FEDSS = (sys.executable, "-m", "fedss.command_line")
PATIENCE = 240.0
TESTS = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoopbackCluster]:
    with (
        environment(
            {"XDG_CACHE_HOME": str(tmp_path_factory.mktemp("cache")), "PYTHONPATH": f"{TESTS}:{TESTS.parent}"}
        ),
        loopback_cluster(nodes=3) as cluster,
    ):
        yield cluster


def round_on(link: Link, federation: TinyFederation, round_index: int) -> RoundReport:
    return run_round(federation.state, tiny_plan(round_index), [3, 0, 1, 2], link, federation.aggregator())


def after_round_of(client_ids: list[int], round_index: int) -> list[bytes]:
    """The state that these clients' updates lead to, in one process."""
    federation = TinyFederation()
    federation.state.round_index = round_index
    run_round(
        federation.state, tiny_plan(round_index), client_ids, federation.link(), federation.aggregator()
    )
    return state_bytes(federation)


FAULTS = {
    BUG: "KeyError: 'a bug'",
    BAD_REQUEST: "bad message: not a message",
    DIES: "its worker process died on Ray node ",
    HANGS: "sent no update within 8 seconds (server.client_timeout)",
}


def test_what_goes_wrong_on_a_client_costs_that_client_with_the_reason(
    cluster: LoopbackCluster, tmp_path: Path
) -> None:
    with open_engine("ray", FaultyClients(tmp_path), EngineSettings(2, 8, cluster.address)) as link:
        for fault, reason in FAULTS.items():
            federation = TinyFederation()
            federation.state.round_index = fault
            report = round_on(link, federation, fault)
            assert list(report.dropped) == [BAD_CLIENT]
            assert report.dropped[BAD_CLIENT].startswith(reason)
            assert state_bytes(federation) == after_round_of([3, 0, 2], fault)
            if fault == BUG:
                (trace,) = report.traces
                assert trace.cause.startswith("KeyError in bug_of_ours, ")


def test_data_are_fetched_by_a_node_that_lacks_them_and_refused_if_they_are_others(
    cluster: LoopbackCluster, tmp_path: Path
) -> None:
    folder = TravellingFolder.of(make_tiny_population(tmp_path / "tiny").directory)
    notes: list[str] = []
    settings = EngineSettings(1, 60, cluster.address, notes.append)
    federation = TinyFederation()
    with open_engine("ray", ClientsWithData(folder), settings) as link:
        assert round_on(link, federation, 0).num_updates == 4
    assert [note.startswith(f"{folder.path} is sent to ") for note in notes] == [True]
    assert state_bytes(federation) == after_round_of([3, 0, 1, 2], 0)

    other = replace(folder, sha256="0" * 64)
    with (
        pytest.raises(EngineError, match=r"cannot train clients: .* is not the folder that the server has"),
        open_engine("ray", ClientsWithData(other), settings) as link,
    ):
        round_on(link, TinyFederation(), 0)


def test_a_run_on_the_cluster_ends_in_the_same_bytes_and_ray_prints_nothing(
    cluster: LoopbackCluster, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    cache = default_cache_folder()
    there = fedss.simulate(
        "glyphs-tiny",
        rounds=2,
        out=tmp_path / "ray",
        engine="ray",
        address=cluster.address,
        workers=0,
        cache=cache,
    )
    here = fedss.simulate("glyphs-tiny", rounds=2, out=tmp_path / "here", cache=cache)
    assert there.summary["dropped_clients"] == 0
    states = [(run.path / "state.safetensors").read_bytes() for run in (there, here)]
    assert states[0] == states[1]
    assert capfd.readouterr() == ("", "")


def test_random_kills_lose_no_update_that_was_accepted_and_count_none_twice(cluster: LoopbackCluster) -> None:
    tally = endure(cluster, cluster.nodes(), rounds=8, kills=Kills(actors=0.5, nodes=0), seed=0)
    assert tally.rounds == 8
    assert tally.actors_killed >= 2
    assert tally.updates + len(tally.dropped) >= 4 * (8 - tally.abandoned)


def test_a_node_that_is_killed_in_a_round_costs_a_second_try_and_the_run_goes_on(
    cluster: LoopbackCluster, tmp_path: Path
) -> None:
    """The last test on this cluster: it loses a node."""
    victim, *_ = cluster.nodes()
    (tmp_path / "victim").write_text(str(cluster.raylet(victim)))
    notes: list[str] = []
    serial, parallel = TinyFederation(), TinyFederation()
    with open_engine(
        "ray", FaultyClients(tmp_path), EngineSettings(3, 300, cluster.address, notes.append)
    ) as link:
        for federation in (serial, parallel):
            federation.state.round_index = HANGS_ON_ONE_NODE

        def kill_while_a_client_hangs() -> None:
            wait_until((tmp_path / "hangs").exists)
            cluster.kill(victim)

        killing = threading.Thread(target=kill_while_a_client_hangs)
        killing.start()
        for round_index in (HANGS_ON_ONE_NODE, HANGS_ON_ONE_NODE + 1):
            one = round_on(serial.link(), serial, round_index)
            other = round_on(link, parallel, round_index)
            assert other.dropped == {}
            assert one.num_updates == other.num_updates
        killing.join()
    assert state_bytes(serial) == state_bytes(parallel)
    (note,) = notes
    assert re.fullmatch(r"its Ray node \S+ \(\w+\) died: client \d is tried again", note)


def test_ray_on_this_machine_keeps_to_the_loopback_interface_and_dies_with_the_run(tmp_path: Path) -> None:
    run = subprocess.Popen(
        [
            *FEDSS,
            *("simulate", "glyphs-tiny", "--rounds", "10000"),
            *("--engine", "ray", "--workers", "1", "--out", tmp_path / "run"),
        ],
        stderr=subprocess.DEVNULL,
        # Ray's agents end when they have given up telling a head that is gone of it, which takes a minute otherwise.
        env={**os.environ, "RAY_gcs_rpc_server_reconnect_timeout_s": "5"},
    )
    try:
        metrics = tmp_path / "run" / "metrics.jsonl"
        wait_until(lambda: metrics.exists() and metrics.stat().st_size > 0)
        started = descendants(run.pid)
        assert any("raylet" in command for command in started.values())
        addresses = listening(run.pid, *started)
        assert addresses
        assert addresses <= LOOPBACK
    finally:
        run.kill()
        run.wait()
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in started))


def listening(*processes: int) -> set[str]:
    """The addresses at which these processes wait for connections."""
    tables = "".join(Path(f"/proc/net/{name}").read_text() for name in ("tcp", "tcp6"))
    rows = [row.split() for row in tables.splitlines()]
    address_of = {row[9]: row[1].partition(":")[0] for row in rows if len(row) > 9 and row[3] == "0A"}
    found = set()
    for process in processes:
        for link in Path(f"/proc/{process}/fd").glob("*"):
            with suppress(OSError):
                inode = os.readlink(link).removeprefix("socket:[").rstrip("]")
                found |= {address_of[inode]} if inode in address_of else set()
    return found


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline, f"not so within {PATIENCE} seconds"
        time.sleep(0.1)
