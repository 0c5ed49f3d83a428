"""The native client draws the noise that Python draws, byte for byte, however a batch is split, and trains with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.federations.conversation_case import ConversationCase, export_small, furthest, run
from helpers.native.arm_programs import CACHE
from helpers.native.programs import ask_probe, run_probe
from helpers.networks.noisy_network import NoisyNetwork, spec_of

from android_harness.bundles.bundle import build_bundle
from ondevice.client.noise import BatchNoise
from ondevice.contract.step_signature import ArraySpec, StepSignature, padded

pytestmark = pytest.mark.slow  # compiles the native client

SIGNATURE = StepSignature(
    (
        ArraySpec("images", "feature", ("b", 1, 3, 5), "uint8"),
        ArraySpec("noise/model.3", "noise", ("b", 7)),
        ArraySpec("noise/model.attn:2", "noise", ("b", 2, 3)),
        ArraySpec("example_weight", "example_weight", ("b",)),
    )
)


def write_artifact(folder: Path, micro_batch: int, **changes: Any) -> Path:
    inputs = SIGNATURE.to_document()
    inputs[1] |= changes
    document = {
        "format": "fedss-artifact",
        "version": 2,
        "spec": {"embedding_dim": 8},
        "signature": inputs,
        "bounds": {"b": micro_batch},
        "files": {},
    }
    folder.mkdir(exist_ok=True)
    (folder / "manifest.json").write_text(json.dumps(document))
    return folder


@pytest.mark.parametrize("micro_batch", [1, 4, 16])
@pytest.mark.parametrize(("seed", "round_index", "number"), [(0, 0, 0), (2**64 - 1, 12, 3), (77, 2**40, 900)])
def test_both_languages_draw_the_same_bytes(
    micro_batch: int, seed: int, round_index: int, number: int, tmp_path: Path
) -> None:
    artifact = write_artifact(tmp_path / "artifact", micro_batch)
    answer = run_probe("noise", artifact, *map(str, (seed, round_index, number, 10)))
    found = [(name, bytes.fromhex(data)) for name, data in (line.split() for line in answer.splitlines())]
    noise = BatchNoise(SIGNATURE, seed, round_index, number)
    expected = []
    for first in range(0, 10, micro_batch):
        drawn = noise.next(min(micro_batch, 10 - first))
        expected += [
            (name, padded(SIGNATURE[name], array, {"b": micro_batch}).tobytes())
            for name, array in drawn.items()
        ]
    assert found == expected
    assert len({data for _, data in found}) == len(found)


@pytest.mark.parametrize(
    "changes", [{"dtype": "uint8"}, {"shape": [7, 7]}, {"shape": ["b", "b"]}, {"padding": 0.5}]
)
def test_noise_that_no_client_could_draw_is_refused(changes: dict[str, Any], tmp_path: Path) -> None:
    artifact = write_artifact(tmp_path / "artifact", 4, **changes)
    done = ask_probe("noise", artifact, "0", "0", "0", "4")
    assert done.returncode != 0
    assert b"noise/model.3 is " in done.stderr


def test_numbers_of_noise_are_exact_in_single_precision() -> None:
    drawn = BatchNoise(SIGNATURE, 3, 1, 4).next(500)["noise/model.3"]
    assert drawn.dtype == np.float32
    assert np.array_equal(drawn * 2**24, np.floor(drawn * 2**24))
    assert 0 <= drawn.min() < 0.01 < 0.99 < drawn.max() < 1


def test_a_round_with_noise_is_that_of_the_python_client(tmp_path: Path) -> None:
    spec = spec_of(NoisyNetwork())
    artifact = export_small(tmp_path / "artifact", "executorch", "executorch-stock", spec=spec)
    bundle = build_bundle(CACHE, "x86_64", "executorch")
    case = ConversationCase(tmp_path / "client", artifact, image_shape=spec.image_shape)
    client = bundle.command(str(bundle.folder))
    done = run([*client, *case.options(str(case.folder), str(artifact.directory))])
    assert (done.returncode, done.stderr) == (0, "")
    found = case.read_update((case.folder / "update").read_bytes())
    expected = case.python_update("executorch")
    assert found.mean_loss == pytest.approx(expected.mean_loss, rel=1e-6)
    assert furthest(found, expected) < 1e-5
    for runtime in ("executorch", "executorch-stock"):
        words = ["--artifact", str(artifact.directory), "--runtime", runtime]
        done = run([*client, "check", *words])
        assert (done.returncode, json.loads(done.stdout)["passed"]) == (0, True)
        done = run([*client, "bench", *words, "--width", "9", "--batch", "6", "--steps", "1"])
        assert (done.returncode, done.stderr) == (0, "")
