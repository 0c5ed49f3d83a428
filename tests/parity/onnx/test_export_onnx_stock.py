"""Training on stock ONNX Runtime, in an environment without torch: what a device has."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers.artifacts.runtime_artifact import dense_of, make_artifact, random_step_inputs

from ondevice.backends.eager import EagerBackend
from ondevice.contract import safetensors_file
from ondevice.contract.artifact import Artifact
from ondevice.contract.step_signature import gradient_of
from ondevice.contract.vocabulary import StepSpec

pytestmark = pytest.mark.slow  # exports, and trains on real runtimes

ROOT = Path(__file__).parents[3]
SPEC = StepSpec("mobilenet_v3_small", embedding_dim=16, image_shape=(3, 32, 32))
PACKAGES = ("onnxruntime", "numpy", "safetensors")

TRAIN_FIVE_STEPS = """
import importlib.metadata, json, sys
from pathlib import Path
import numpy as np
from safetensors.numpy import load_file, save_file
from ondevice.contract.artifact import open_artifact
from ondevice.backends.onnxruntime_module import OnnxruntimeBackend

artifact = open_artifact(Path(sys.argv[1]))
backend = OnnxruntimeBackend(artifact)
arrays = load_file(sys.argv[2])
losses = []
for _ in range(5):
    outputs = backend.step(arrays)
    losses.append(float(outputs["loss"]))
    for name in artifact.signature.trained:
        arrays[name] -= 0.01 * outputs["gradient/" + name]
save_file({name: arrays[name] for name in artifact.signature.trained}, sys.argv[3])
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
    inputs = {**dense_of(artifact), **random_step_inputs(artifact.signature, 40, 4)}
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

    arrays = {name: array.copy() for name, array in inputs.items()}
    eager = EagerBackend(SPEC, artifact.initial())
    losses = []
    for _ in range(5):
        outputs = eager.step(arrays)
        losses.append(float(outputs["loss"]))
        for name in artifact.signature.trained:
            arrays[name] -= 0.01 * outputs[gradient_of(name)]
    assert losses[-1] < losses[0]
    np.testing.assert_allclose(report["losses"], losses, rtol=1e-4)
    for name in artifact.signature.trained:
        found = trained[name]
        assert isinstance(found, np.ndarray)
        np.testing.assert_allclose(found, arrays[name], rtol=1e-3, atol=1e-5, err_msg=name)
