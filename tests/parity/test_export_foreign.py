"""Anybody's module, from an object to an artifact: what was done to it is on record, and the runtimes are proven."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from torch import nn

import fedss
from ondevice.backends.opening import open_backend
from ondevice.contract.golden_step import check_golden

pytestmark = pytest.mark.slow

SPEC = fedss.StepSpec(embedding_dim=8, image_shape=(3, 16, 16), train="4,last-two")


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2),
        nn.BatchNorm2d(8),
        nn.ReLU(True),
        nn.Dropout(0.2),
        nn.Conv2d(8, 16, 1),
        nn.GELU(),
    )


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> fedss.Artifact:
    out = tmp_path_factory.mktemp("foreign") / "step"
    notes: list[str] = []
    made = fedss.export(
        network(),
        spec=SPEC,
        out=out,
        runtimes=["onnxruntime", "executorch"],
        batch_norm="frozen",
        max_width=16,
        on_note=notes.append,
    )
    assert any(note.startswith("1 BatchNorm layer: statistics frozen") for note in notes)
    assert any(note.startswith("train 4,last-two: 280 parameters travel (") for note in notes)
    return made


def test_what_was_done_is_on_record(artifact: fedss.Artifact) -> None:
    manifest = artifact.manifest
    assert manifest.spec.batch_norm == "frozen"
    assert manifest.spec.architecture == "object:torch.nn.modules.container.Sequential"
    assert "randomness off in 1 modules: 1 Dropout" in manifest.provenance["remarks"]
    frozen = {parameter.name for parameter in manifest.parameters if not parameter.trainable}
    assert {"model.0.weight", "model.1.running_mean", "model.1.running_var"} <= frozen


@pytest.mark.parametrize("runtime", ["onnxruntime", "executorch", "eager"])
def test_every_runtime_gives_the_golden_step(artifact: fedss.Artifact, runtime: str) -> None:
    backend = open_backend(artifact, runtime)
    assert check_golden(backend, artifact.initial(), artifact.golden()).passed


def test_another_process_opens_it_but_cannot_build_the_module(artifact: fedss.Artifact) -> None:
    program = (
        "import sys, fedss; from ondevice.backends.opening import open_backend; "
        "opened = fedss.open_artifact(sys.argv[1]); open_backend(opened, 'onnxruntime'); open_backend(opened, 'eager')"
    )
    command = [sys.executable, "-c", program, str(artifact.directory)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert "handed over as an object, in another process" in done.stderr


def test_a_module_that_is_no_extractor_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(fedss.UsageError, match="cannot take"):
        fedss.export(nn.Linear(3, 3), spec=SPEC, out=tmp_path / "step", runtimes=["onnxruntime"])
    assert not list(tmp_path.iterdir())
