"""A Flower deployment on this machine, and the proof that it ends in the same state: `make flower`.

One SuperLink and two SuperNodes on 127.0.0.1, TLS on every hop, nodes known by their keys.  The same experiment is then run
in one process, and the bytes of the two saved states are compared.  Whatever happens, every process that was started ends.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from credentials import Certificates, make_certificates, make_node_key

import fedss
from ondevice.tools.cache_folder import default_cache_folder

APP = Path(__file__).parent
EXPERIMENT = "glyphs-fedss"
CONNECTION = "loopback"
NODES = 2
_ENDED = {"finished"}
_END_SECONDS = 5.0
"""That processes get to end by themselves."""


class DeploymentFailed(RuntimeError):
    """Something of Flower's did not come up or ended early; its log says why."""


@dataclass
class Deployment:
    """The processes of one deployment, all of them with a FLWR_HOME that nobody else has."""

    folder: Path
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
        bin_folder = str(Path(sys.executable).parent)
        path = f"{bin_folder}{os.pathsep}{os.environ.get('PATH', '')}"
        return {**os.environ, **quiet, "FLWR_HOME": str(self.folder / "home"), "PATH": path}

    def start(self, name: str, command: Sequence[str]) -> None:
        with (self.folder / f"{name}.log").open("wb") as log:
            self.processes[name] = subprocess.Popen(
                [program(command[0]), *command[1:]],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self.environment,
                start_new_session=True,
            )

    def flwr(self, *arguments: str) -> str:
        command = [program("flwr"), *arguments]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise DeploymentFailed(f"flwr {' '.join(arguments)}: {done.stdout}{done.stderr}")
        return done.stdout

    def check_alive(self) -> None:
        for name, process in self.processes.items():
            if process.poll() is not None:
                text = (self.folder / f"{name}.log").read_text(errors="replace")
                raise DeploymentFailed(f"{name} ended with exit code {process.returncode}:\n{text[-3000:]}")

    def end(self) -> None:
        """All processes, those too that Flower has put into sessions of their own: they share our FLWR_HOME."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)  # a second Ctrl-C would leave some of them behind
        for process in self.processes.values():
            process.terminate()
        deadline = time.monotonic() + _END_SECONDS
        while self._running() and time.monotonic() < deadline:
            time.sleep(0.2)
        for process_id in self._running():
            with suppress(ProcessLookupError):
                os.kill(process_id, signal.SIGKILL)
        for process in self.processes.values():
            process.wait()

    def _running(self) -> list[int]:
        for process in self.processes.values():
            process.poll()  # takes the dead off the list of processes
        mark = f"FLWR_HOME={self.folder / 'home'}".encode()
        found = []
        for entry in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):
                if mark in entry.read_bytes().split(b"\0"):
                    found.append(int(entry.parent.name))
        return found


def program(name: str) -> str:
    """A command of the environment that runs this."""
    return str(Path(sys.executable).parent / name)


@contextmanager
def deployed(folder: Path, cache: Path) -> Iterator[Deployment]:
    """A SuperLink, and SuperNodes that it knows."""
    deployment = Deployment(folder)
    certificates = make_certificates(folder)
    port, *node_ports = free_ports(1 + NODES)
    address = f"127.0.0.1:{port}"
    write_connection(folder / "home", address, certificates)
    server_tls = [
        "--ssl-certfile", str(certificates.certificate),
        "--ssl-keyfile", str(certificates.key),
        "--ssl-ca-certfile", str(certificates.authority),
    ]  # fmt: skip
    try:
        listen = ["--host", "127.0.0.1", "--port", str(port)]
        guarded = ["--enable-supernode-auth", "--disable-runtime-dependency-installation"]
        deployment.start("superlink", ["flower-superlink", *listen, *server_tls, *guarded])
        wait_for_port(deployment, port)
        for number, node_port in enumerate(node_ports, start=1):
            private, public = make_node_key(folder, f"node{number}")
            deployment.flwr("supernode", "register", str(public), CONNECTION)
            reach = ["--superlink", address, "--root-certificates", str(certificates.authority)]
            known = ["--auth-supernode-private-key", str(private)]
            own = ["--host", "127.0.0.1", "--port", str(node_port), "--node-config", f'cache="{cache}"']
            deployment.start(f"supernode{number}", ["flower-supernode", *reach, *known, *own, *server_tls])
        yield deployment
    finally:
        deployment.end()


def write_connection(home: Path, address: str, certificates: Certificates) -> None:
    """What `flwr` reads of the SuperLink."""
    home.mkdir()
    lines = [
        "[superlink]",
        f'default = "{CONNECTION}"',
        f"[superlink.{CONNECTION}]",
        f'address = "{address}"',
        f'root-certificates = "{certificates.authority}"',
    ]
    (home / "config.toml").write_text("\n".join(lines) + "\n")


def free_ports(count: int) -> list[int]:
    """Ports of loopback that nobody listens on at the moment."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [own.getsockname()[1] for own in sockets]
    for own in sockets:
        own.close()
    return ports


def wait_for_port(deployment: Deployment, port: int, seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        deployment.check_alive()
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.3)
    raise DeploymentFailed(f"nobody listens on port {port} after {seconds:.0f} s")


def run_app(deployment: Deployment, settings: Mapping[str, str | int]) -> None:
    """Start a run and wait for its end."""
    values = " ".join(
        f'{key}="{value}"' if isinstance(value, str) else f"{key}={value}" for key, value in settings.items()
    )
    started = deployment.flwr("run", str(APP), CONNECTION, "--run-config", values, "--format", "json")
    run_id = str(json.loads(started)["run-id"])
    print(f"Flower's run {run_id}", flush=True)
    seen = ""
    while True:
        deployment.check_alive()
        listed = json.loads(deployment.flwr("list", CONNECTION, "--run-id", run_id, "--format", "json"))
        (run,) = listed["runs"]
        if run["status"] != seen:
            seen = run["status"]
            print(f"  {seen}", flush=True)
        state, _, how = seen.partition(":")
        if state in _ENDED:
            if how != "completed":
                raise DeploymentFailed(deployment.flwr("log", run_id, CONNECTION, "--show"))
            return
        time.sleep(2)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--clients", type=int, default=8, help="per round")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    cache = default_cache_folder()
    changes = [f"server.rounds={options.rounds}", f"server.clients_per_round={options.clients}"]
    with tempfile.TemporaryDirectory(prefix="fedss-flower-") as name:
        folder = Path(name)
        print(f"in this process: {EXPERIMENT}, {' '.join(changes)}", flush=True)
        fedss.simulate(EXPERIMENT, overrides=changes, out=folder / "in-process", cache=cache)
        with deployed(folder, cache) as deployment:
            settings: dict[str, str | int] = {
                "experiment": EXPERIMENT,
                "overrides": " ".join(changes),
                "out": str(folder / "flower"),
                "cache": str(cache),
                "nodes": NODES,
            }
            run_app(deployment, settings)
        states = [(folder / run / "state.safetensors").read_bytes() for run in ("in-process", "flower")]
        same = states[0] == states[1]
        verdict = "the same on Flower and in this process" if same else "DIFFERENT on Flower"
        print(f"state after {options.rounds} rounds: {len(states[0]):,} bytes, {verdict}")
    return 0 if same else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("stopped; nothing was left running")
    except DeploymentFailed as error:
        sys.exit(f"failed: {error}")
