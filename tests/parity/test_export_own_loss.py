"""Several named inputs and a loss, all of a user's file: proven on the runtimes, on record, and never run unasked."""

from __future__ import annotations

from pathlib import Path

import pytest

import fedss
from ondevice.backends.opening import Runtime, needs_trust, open_backend
from ondevice.contract.golden_step import check_golden

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_loss.py"
NETWORK, LOSS = f"{EXAMPLE}:Advert", f"{EXAMPLE}:Margin"
SPEC = fedss.StepSpec(embedding_dim=8, image_shape=(3, 16, 16), objective=LOSS)
UNKNOWN = """
import torch
from ondevice.model.objectives.sampled_softmax import SampledSoftmax

class Factorials(SampledSoftmax):
    def losses(self, embeddings, arrays):
        return torch.lgamma(super().losses(embeddings, arrays) + 2)
"""


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> fedss.Artifact:
    return fedss.export(
        NETWORK,
        spec=SPEC,
        arguments={"length": 4},
        out=tmp_path_factory.mktemp("own") / "step",
        runtimes=["executorch", "onnxruntime"],
        micro_batch=2,
        max_width=16,
    )


@pytest.mark.parametrize("runtime", ["executorch", "onnxruntime"])
def test_every_runtime_gives_the_golden_step(artifact: fedss.Artifact, runtime: Runtime) -> None:
    backend = open_backend(artifact, runtime)
    comparison = check_golden(backend, artifact.initial(), artifact.golden())
    assert comparison.passed, comparison.explain()


def test_inputs_and_code_are_on_record_and_the_code_needs_trust(artifact: fedss.Artifact) -> None:
    features = [(each.name, each.dtype) for each in artifact.signature.features]
    assert features == [
        ("images", "uint8"),
        ("tokens", "int64"),
        ("mask", "uint8"),
        ("numbers", "float32"),
    ]
    provenance = artifact.manifest.provenance
    assert provenance["objective_sha256"] == provenance["source_sha256"] is not None
    assert needs_trust(artifact, "") == f"{NETWORK}, {LOSS}"
    assert needs_trust(artifact, NETWORK) == LOSS
    assert not needs_trust(artifact, f"{NETWORK}, {LOSS}")


def test_an_operator_of_the_loss_is_refused_by_its_name_and_place(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(UNKNOWN)
    spec = fedss.StepSpec("two_convolutions", 4, (1, 8, 8), objective=f"{tmp_path}/own.py:Factorials")
    with pytest.raises(fedss.UsageError, match=r"aten\.lgamma\.default \(at the objective\): .*; "):
        fedss.export(spec, out=tmp_path / "step", runtimes=["onnxruntime"])
