"""Training on stock ONNX Runtime, in an environment without torch: what a device has."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers.runtime_artifact import make_artifact, random_step_inputs

from ondevice.backends.eager import EagerBackend
from ondevice.contract import safetensors_file
from ondevice.contract.artifact import Artifact
from ondevice.contract.vocabulary import StepSpec

pytestmark = pytest.mark.slow  # exports, and trains on real runtimes

ROOT = Path(__file__).parents[2]
SPEC = StepSpec("mobilenet_v3_small", embedding_dim=16, image_shape=(3, 32, 32))
PACKAGES = ("onnxruntime", "numpy", "safetensors")

TRAIN_FIVE_STEPS = """
import importlib.metadata, json, sys
from pathlib import Path
import numpy as np
from safetensors.numpy import load_file, save_file
from ondevice.contract.artifact import open_artifact
from ondevice.backends import Batch
from ondevice.backends.onnxruntime_module import OnnxruntimeBackend

artifact = open_artifact(Path(sys.argv[1]))
backend = OnnxruntimeBackend(artifact)
weights, inputs = artifact.initial(), load_file(sys.argv[2])
columns = inputs["columns"]
batch = Batch(inputs["images"], inputs["labels"], inputs["example_weight"])
losses = []
for _ in range(5):
    result = backend.step(weights, columns, inputs["adjust"], batch)
    losses.append(result.loss)
    columns -= 0.01 * result.columns_gradient
    for name, gradient in result.extractor_gradients.items():
        weights[name] -= 0.01 * gradient
save_file({**weights, "columns": columns}, sys.argv[3])
print(json.dumps({
    "losses": losses,
    "torch": "torch" in sys.modules,
    "installed": sorted(d.metadata["Name"].lower() for d in importlib.metadata.distributions()),
}))
"""


@pytest.fixture(scope="module")
def stock_python() -> Path:
    """A virtual environment with the newest stock runtime, kept from one run to the next."""
    environment = ROOT / "cache" / "stock-onnxruntime"
    python = environment / "bin" / "python"
    complete = environment / "complete"
    if not complete.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", environment], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
        complete.touch()
    return python


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return make_artifact(tmp_path_factory.mktemp("stock"), SPEC, "onnxruntime")


def test_five_steps_without_torch_give_the_parameters_of_eager(
    stock_python: Path, artifact: Artifact, tmp_path: Path
) -> None:
    columns, adjust, batch = random_step_inputs(SPEC, 40, 4)
    inputs = {
        "columns": columns,
        "adjust": adjust,
        "images": batch.images,
        "labels": batch.labels,
        "example_weight": batch.example_weight,
    }
    (tmp_path / "inputs").write_bytes(safetensors_file.to_bytes(inputs, {}))
    run = subprocess.run(
        [stock_python, "-c", TRAIN_FIVE_STEPS, artifact.directory, tmp_path / "inputs", tmp_path / "trained"],
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr
    report = json.loads(run.stdout)
    assert not report["torch"]
    assert "torch" not in report["installed"]
    assert "onnxruntime-training-cpu" not in report["installed"]
    trained, _ = safetensors_file.from_bytes((tmp_path / "trained").read_bytes())

    initial = artifact.initial()
    weights = {name: value.copy() for name, value in initial.items()}
    eager = EagerBackend(SPEC, initial)
    losses = []
    for _ in range(5):
        result = eager.step(weights, columns, adjust, batch)
        losses.append(result.loss)
        columns -= 0.01 * result.columns_gradient
        for name, gradient in result.extractor_gradients.items():
            weights[name] -= 0.01 * gradient
    assert losses[-1] < losses[0]
    np.testing.assert_allclose(report["losses"], losses, rtol=1e-4)
    for name, value in {**weights, "columns": columns}.items():
        np.testing.assert_allclose(trained[name], value, rtol=1e-3, atol=1e-5, err_msg=name)
