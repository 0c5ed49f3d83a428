"""Bundles: they need nothing of the system they land on, and both clients do the same round on x86_64 and on ARM64."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import typer
from helpers.federations.conversation_case import ConversationCase, export_small, furthest, run
from helpers.native.arm_programs import CACHE, require_programs
from typer.testing import CliRunner

import fedss.commands.bundle
from android_harness.bundles.bundle import (
    BUNDLE_RUNTIMES,
    BundleError,
    BundleRuntime,
    build_bundle,
    copy_bundle,
    open_bundle,
)
from android_harness.devices.qemu import QEMU_PROGRAMS, QemuDevice
from ondevice.contract.artifact import Artifact

pytestmark = pytest.mark.slow  # compiles the native client


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return export_small(tmp_path_factory.mktemp("bundle") / "artifact", "executorch", "onnxruntime")


@pytest.fixture(scope="module")
def qemu(artifact: Artifact) -> Iterator[QemuDevice]:
    require_programs(*QEMU_PROGRAMS, "aarch64-linux-gnu-g++")
    with closing(QemuDevice(CACHE)) as device:
        device.push(artifact.directory, "artifact")
        yield device


@pytest.mark.skipif(os.geteuid() != 0, reason="chroot needs root")
@pytest.mark.parametrize("runtime", BUNDLE_RUNTIMES)
def test_a_client_runs_in_a_root_that_has_nothing_else(
    runtime: BundleRuntime, artifact: Artifact, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    case = ConversationCase(tmp_path / "client", artifact)
    bundle = copy_bundle(build_bundle(CACHE, "x86_64", runtime), root / "bundle")
    shutil.copytree(artifact.directory, root / "artifact")
    shutil.copytree(case.folder, root / "client")
    # Of the kernel, not of a system: the runtimes ask it for the processor, and every device has it.
    (root / "proc").mkdir()
    (root / "proc/cpuinfo").write_bytes(Path("/proc/cpuinfo").read_bytes())
    start = ["chroot", str(root), *bundle.command("/bundle")]
    check = run([*start, "check", "--artifact", "/artifact"])
    assert check.returncode == 0, check.stderr
    assert json.loads(check.stdout)["passed"]
    asks = run([*start, *case.options("/client", "/artifact", answers="none", out="request")])
    assert asks.returncode == 0, asks.stderr
    assert (root / "client/request").read_bytes() == case.request
    open_bundle(root / "bundle")  # unchanged: the client wrote nothing beside itself


@pytest.mark.parametrize("runtime", BUNDLE_RUNTIMES)
def test_a_client_on_arm64_does_the_round_of_this_host(
    runtime: BundleRuntime, qemu: QemuDevice, artifact: Artifact, tmp_path: Path
) -> None:
    bundle = build_bundle(CACHE, "aarch64", runtime)
    qemu.push(bundle.folder, runtime)
    start = bundle.command(runtime)
    check = qemu.run([*start, "check", "--artifact", "artifact"], 300.0)
    assert check.exit_code == 0, check.stderr
    assert json.loads(check.stdout)["worst_relative_error"] < 1e-5
    case = ConversationCase(tmp_path / "client", artifact)
    qemu.push(case.folder, f"client-{runtime}")
    for answers, out in (("none", "request"), ("answers", "update")):
        options = case.options(f"client-{runtime}", "artifact", answers, out)
        qemu.run([*start, *options], 300.0).expect_success(options[0])
    qemu.pull(f"client-{runtime}", tmp_path / "back")
    assert (tmp_path / "back/request").read_bytes() == case.request
    found = case.read_update((tmp_path / "back/update").read_bytes())
    assert furthest(found, case.python_update(runtime)) < 1e-4


def test_both_clients_bench_the_same_step_and_refuse_the_same_files(
    artifact: Artifact, tmp_path: Path
) -> None:
    case = ConversationCase(tmp_path / "client", artifact)
    losses = []
    for runtime in BUNDLE_RUNTIMES:
        bundle = build_bundle(CACHE, "x86_64", runtime)
        start = bundle.command(str(bundle.folder))
        options = ["--artifact", str(artifact.directory), "--width", "9", "--batch", "6", "--steps", "1"]
        done = run([*start, "bench", *options])
        assert done.returncode == 0, done.stderr
        ready, *steps, _ = (json.loads(line) for line in done.stdout.splitlines())
        assert ready["runtime"] == runtime
        losses += [step["loss"] for step in steps]
        (case.folder / "answers/0").write_bytes(case.slice_message[:-1])
        refused = run([*start, *case.options(str(case.folder), str(artifact.directory))])
        assert (refused.returncode, refused.stderr.count("\n")) == (3, 1)
        assert run([*start, "bench", "--artifact", str(artifact.directory)]).returncode == 2
    assert losses == pytest.approx([losses[0]] * len(losses), rel=1e-5)


def test_a_changed_byte_in_a_bundle_is_named(tmp_path: Path) -> None:
    bundle = copy_bundle(build_bundle(CACHE, "x86_64", "executorch"), tmp_path / "bundle")
    with (bundle.folder / "fedss-client").open("ab") as program:
        program.write(b"x")
    with pytest.raises(BundleError, match="fedss-client changed"):
        open_bundle(bundle.folder)
    with pytest.raises(BundleError, match="not a bundle"):
        copy_bundle(bundle, tmp_path)


def test_the_verb_copies_a_bundle_and_says_how_to_start_it(tmp_path: Path) -> None:
    app = typer.Typer()
    app.command()(fedss.commands.bundle.command)
    words = ["--arch", "x86_64", "--out", str(tmp_path / "bundle"), "--cache", str(CACHE), "--json"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    answer = json.loads(done.stdout)
    assert answer["sha256"] == open_bundle(tmp_path / "bundle").sha256
    assert answer["command"][-1] == "./fedss-client"
    assert any(name.startswith("executorch-") for name in answer["sources"])
