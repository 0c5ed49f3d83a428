"""Ray as an engine: on this machine, or on a cluster that somebody started with `ray start`.

On one machine Ray is started for the run, on the loopback interface alone, and ended after it; its processes end with this
one, however that ends.  A cluster is joined at its address, and left as it was.  Trusted networks only: Ray's ports are not
authenticated, and it unpickles what reaches them.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from tempfile import TemporaryDirectory

import ray
from ray._private import ray_constants
from ray._private import worker as ray_worker

from ondevice.contract.link import Link
from server_sim.engines import EngineError, EngineSettings, OpenClients
from server_sim.engines.ray_link import RayLink

LOOPBACK = "127.0.0.1"
ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # Workers would run at nice 15 otherwise, and starve beside anything else.
    "RAY_worker_niceness": "0",
    # A busy machine takes its time to import torch.
    "RAY_worker_register_timeout_seconds": "600",
    # Only to be spared a warning about it.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
"""For the processes that Ray starts."""
_REACHABLE_SECONDS = 10.0
_STARTS = 3
"""How often Ray is started before it is given up: it gives itself half a minute, which a busy machine may exceed."""


@contextmanager
def open_ray(open_clients: OpenClients, settings: EngineSettings) -> Iterator[Link]:
    """Actors on as many cores as conversations are wanted at once; 0: on all that the cluster has."""
    with _on_this_machine(settings.workers) if settings.address is None else _on_cluster(settings.address):
        cores = int(ray.cluster_resources().get("CPU", 0))
        if not cores:
            raise EngineError("no node of the Ray cluster has a core for clients: start one with --num-cpus")
        link = RayLink(open_clients, settings.workers or cores, settings)
        try:
            yield link
        finally:
            link.close()


@contextmanager
def _on_this_machine(workers: int) -> Iterator[None]:
    with (
        TemporaryDirectory(prefix="fedss-ray-", ignore_cleanup_errors=True) as folder,
        environment(ENVIRONMENT),
        loopback_only(),
        _quiet(),
    ):
        try:
            _start(workers, folder)
            address = ray.util.get_node_ip_address()
            if address != LOOPBACK:
                raise EngineError(f"Ray listens on {address}, not on {LOOPBACK} alone; install ray==2.55.1")
            yield
        finally:
            ray.shutdown()


def _start(workers: int, folder: str) -> None:
    for attempt in range(1, _STARTS + 1):
        try:
            ray.init(
                "local",
                num_cpus=workers or os.cpu_count(),
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.CRITICAL,
                _node_ip_address=LOOPBACK,
                _temp_dir=folder,
            )
            return
        except Exception as error:  # Ray has no kind of its own for this
            ray.shutdown()
            if attempt == _STARTS:
                raise EngineError(f"Ray does not start on this machine: {error}") from error


@contextmanager
def _on_cluster(address: str) -> Iterator[None]:
    host, _, port = address.rpartition(":")
    # Ray itself would try for many minutes.
    if not _answers(host, int(port)):
        raise EngineError(
            f"nothing answers at {address}; expected HOST:PORT of a head that was started with `ray start --head`"
        )
    with ExitStack() as stack:
        stack.enter_context(environment(ENVIRONMENT))
        stack.enter_context(_quiet())
        if host in (LOOPBACK, "localhost") and not _answers(ray.util.get_node_ip_address(), int(port)):
            stack.enter_context(loopback_only())
        stack.callback(ray.shutdown)
        try:
            ray.init(address, log_to_driver=False, logging_level=logging.CRITICAL)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise EngineError(
                f"the Ray cluster at {address} cannot be joined ({error}); this machine has to be one of its nodes: "
                f"ray start --address={address}"
            ) from None
        yield


def _answers(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), _REACHABLE_SECONDS).close()
    except OSError:
        return False
    return True


@contextmanager
def environment(settings: Mapping[str, str]) -> Iterator[None]:
    """Variables of this process, for a while."""
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


@contextmanager
def loopback_only() -> Iterator[None]:
    """Without it Ray takes 127.0.0.1 for the machine's outer address, and listens on every interface.

    The variable tells the processes that have yet to import Ray, the constant this one.
    """
    before = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        with environment({ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR: "0"}):
            yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


@contextmanager
def _quiet() -> Iterator[None]:
    """Ray prints what its nodes report to standard output, which is for results.  What matters of it is a reason here."""
    before = ray_worker.print_to_stdstream
    ray_worker.print_to_stdstream = lambda *_, **__: None
    try:
        yield
    finally:
        ray_worker.print_to_stdstream = before
