"""Three Ray nodes on this machine, on the loopback interface: what docs/cluster.md does on three machines.

    python examples/three_ray_nodes.py --rounds 4

It runs an experiment on them and once more in one process, and compares the states of the server byte by byte.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import fedss
from server_sim.engines.ray_session import ENVIRONMENT, LOOPBACK, environment, loopback_only

NOTICED_SOON = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
}
"""A node that dies is given up after some 5 seconds; Ray's own settings take about 15."""
_STARTS = 5
"""How often a node is started before it is given up: Ray gives it half a minute, which a busy machine may exceed."""


class LoopbackCluster:
    """Real Ray nodes, each with an object store and a core of its own; the first is the head."""

    def __init__(self, cluster: Any) -> None:
        self._cluster = cluster
        self.address: str = cluster.address

    def add_node(self) -> Any:
        for _ in range(_STARTS - 1):
            with suppress(Exception):  # Ray has no kind of its own for a start that took too long
                return self._start()
        return self._start()

    def _start(self) -> Any:
        with loopback_only():
            return self._cluster.add_node(num_cpus=1, node_ip_address=LOOPBACK)

    def nodes(self) -> list[Any]:
        """All but the head, which the others cannot do without."""
        return list(self._cluster.worker_nodes)

    def raylet(self, node: Any) -> int:
        """The process that is the parent of a node's actors."""
        (raylet,) = node.all_processes["raylet"]
        pid: int = raylet.process.pid
        return pid

    def kill(self, node: Any) -> None:
        """SIGKILL, as a machine that loses its power."""
        os.kill(self.raylet(node), signal.SIGKILL)

    def remove(self, node: Any) -> None:
        """What is left of a node that was killed."""
        self._cluster.remove_node(node, allow_graceful=False)


@contextmanager
def loopback_cluster(
    nodes: int, head_cores: int = 1, health: Mapping[str, str] = NOTICED_SOON
) -> Iterator[LoopbackCluster]:
    """A cluster that ends with the block, and with this process."""
    from ray.cluster_utils import Cluster

    with TemporaryDirectory(prefix="fedss-ray-", ignore_cleanup_errors=True) as folder:
        Path(folder, "ray").mkdir()
        with environment({**ENVIRONMENT, **health, "RAY_TMPDIR": folder}), loopback_only():
            head = {
                "num_cpus": head_cores,
                "node_ip_address": LOOPBACK,
                "include_dashboard": False,
                "temp_dir": folder,
            }
            cluster = Cluster(initialize_head=True, head_node_args=head)
            try:
                loopback = LoopbackCluster(cluster)
                for _ in range(nodes - 1):
                    loopback.add_node()
                yield loopback
            finally:
                cluster.shutdown()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--experiment", default="glyphs-fedss")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--out", type=Path, default=Path("runs/three-ray-nodes"))
    options = parser.parse_args()
    states = {}
    with loopback_cluster(nodes=3) as cluster:
        places: dict[str, dict[str, Any]] = {
            "three Ray nodes": {"engine": "ray", "address": cluster.address, "workers": 3},
            "worker processes": {"workers": 2},
            "one process": {"workers": 1},
        }
        for name, place in places.items():
            out = options.out / name.replace(" ", "-")
            run = fedss.simulate(options.experiment, rounds=options.rounds, out=out, on_note=print, **place)
            states[name] = (run.path / "state.safetensors").read_bytes()
            print(f"{name}: {run.summary}")
    if len(set(states.values())) > 1:
        sys.exit(f"the states differ; they are in {options.out}")
    print(f"the same {len(states['one process'])} bytes of state from {', '.join(states)}")


if __name__ == "__main__":
    main()
