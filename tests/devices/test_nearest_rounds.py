"""Rounds of `nearest` on the devices' clients: they embed, hash and look up on the device, and train what Python trains."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from helpers.data.tiny_texts import TIED, tiny_texts
from helpers.federations.conversation_case import NUM_CLASSES, SPEC, export_small
from helpers.federations.device_federation import Federation, linked
from helpers.federations.nearest_federation import NearestFederation
from helpers.native.arm_programs import CACHE

from android_harness.devices.host import HostDevice
from android_harness.rounds.training_device import ClientData, TrainingDevice, TrainingKit
from fedss.device_rounds import bundle_for
from ondevice.contract.vocabulary import StepSpec
from server_sim.one_round import RoundAbandoned
from server_sim.schemes.nearest import Nearest

pytestmark = pytest.mark.slow  # compiles the native client

IMAGES = Nearest(num_negatives=20, num_random=5, num_bits=3, num_tables=4)
WORDS = Nearest(num_negatives=20, num_random=5, num_bits=3, num_tables=4, of_words=True)
EXACT = Nearest(num_negatives=20, num_random=5, search="exact")


def texts_of(client_id: int) -> ClientData:
    return ClientData(tiny_texts(10, seed=client_id, vocabulary=NUM_CLASSES), private_seed=1000 + client_id)


@pytest.mark.parametrize(
    ("spec", "schemes"), [(SPEC, [IMAGES, EXACT]), (TIED, [WORDS])], ids=["images", "a tied table"]
)
def test_rounds_on_this_machines_native_client_are_byte_for_byte_the_simulated_ones(
    spec: StepSpec, schemes: list[Nearest], tmp_path: Path
) -> None:
    artifact = export_small(tmp_path / "artifact", "executorch", spec=spec)
    client_data = texts_of if spec is TIED else Federation.client_data
    kit = TrainingKit(artifact.directory, partial(bundle_for, CACHE, "executorch"), client_data)
    with linked(TrainingDevice("host", HostDevice, kit)) as (link, _):
        for scheme in schemes:
            native, simulated = (NearestFederation(artifact, scheme, client_data) for _ in range(2))
            reports = [native.play(link, rounds=2), simulated.play(simulated.simulated(), rounds=2)]
            assert native.weights().tobytes() == simulated.weights().tobytes()
            assert reports[0] == reports[1]  # the same losses, widths and bytes in both directions
        # A server whose tables are others than the plan's refuses the look-up, and nothing has changed.
        before = native.weights().tobytes()
        others = scheme.model_copy(update={"hash_seed": 1, "search": "simhash"})
        native.index = others.open_index(native.state)
        with pytest.raises(RoundAbandoned, match=r"bad message: .*(hash functions|tensors missing)"):
            native.play(link)
        assert native.weights().tobytes() == before


@pytest.mark.parametrize(("spec", "scheme"), [(SPEC, IMAGES), (TIED, WORDS)], ids=["images", "a tied table"])
def test_a_round_on_the_client_for_onnx_runtime_is_the_simulated_one(
    spec: StepSpec, scheme: Nearest, tmp_path: Path
) -> None:
    artifact = export_small(tmp_path / "artifact", "onnxruntime", spec=spec)
    client_data = texts_of if spec is TIED else Federation.client_data
    kit = TrainingKit(artifact.directory, partial(bundle_for, CACHE, "onnxruntime"), client_data)
    on_device, simulated = (NearestFederation(artifact, scheme, client_data) for _ in range(2))
    with linked(TrainingDevice("host", HostDevice, kit)) as (link, _):
        found = on_device.play(link)
    expected = simulated.play(simulated.simulated("onnxruntime"))
    # The device has the stock build of the runtime, which adds up in another order; what it asks for is the same.
    assert found.mean_loss == pytest.approx(expected.mean_loss, rel=1e-5)
    assert replace(found, mean_loss=0.0) == replace(expected, mean_loss=0.0)
    np.testing.assert_allclose(on_device.weights(), simulated.weights(), rtol=1e-4, atol=1e-6)
