"""The project's round against Algorithm 1 in plain lines: `examples/plain_fedss.py`, which shares no code with it."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import numpy as np
import torch
from helpers.federations.tiny_federation import TinyFederation

from ondevice.client.samplers.uniform_negatives import draw_negatives
from ondevice.contract.choice import Choice
from ondevice.contract.portable_random import PortableRandom, Purpose
from ondevice.contract.vocabulary import COLUMNS, IMAGES, LocalTraining, RoundPlan
from ondevice.model.extractors import build_extractor
from server_sim.one_round import run_round
from server_sim.server.optimizers import FedAvgM

NEGATIVES, ROUNDS, BATCH = 6, 3, 4
RATE = 0.05


def plain_fedss() -> ModuleType:
    path = Path(__file__).parents[2] / "examples" / "plain_fedss.py"
    spec = importlib.util.spec_from_file_location("plain_fedss", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module


def test_three_rounds_are_those_of_algorithm_1_in_plain_lines() -> None:
    twin = plain_fedss()
    tiny = TinyFederation(optimizer=FedAvgM())
    extractor = build_extractor(tiny.spec)
    extractor.load_state_dict({name: torch.from_numpy(value.copy()) for name, value in tiny.initial.items()})
    columns = torch.from_numpy(tiny.state.tables[COLUMNS].read_all(0).copy())
    clients = [
        twin.Client(torch.from_numpy(examples.features[IMAGES]), torch.from_numpy(examples.labels))
        for examples in tiny.clients
    ]
    model = twin.Model(extractor, columns)
    training = LocalTraining(batch_size=BATCH, learning_rate=RATE)
    sampler = Choice("uniform_negatives", {"num_negatives": NEGATIVES})
    for round_index in range(ROUNDS):
        plan = RoundPlan(round_index, tiny.state.table_sizes, sampler, Choice("uniform"), (), training)
        report = run_round(tiny.state, plan, range(len(clients)), tiny.link(), tiny.aggregator())

        def negatives(client: int, held: Sequence[int], round_index: int = round_index) -> list[int]:
            random = PortableRandom(100 + client, round_index, Purpose.NEGATIVES)
            drawn = draw_negatives(np.array(held), NEGATIVES, tiny.num_classes, random)
            return [int(class_id) for class_id in drawn]

        def order(client: int, count: int, round_index: int = round_index) -> list[int]:
            random = PortableRandom(100 + client, round_index, Purpose.FIRST_EPOCH)
            return [int(position) for position in random.permutation(count)]

        loss = twin.run_round(model, clients, twin.Draws(negatives, order), twin.Training(BATCH, RATE))
        np.testing.assert_allclose(report.mean_loss, loss, rtol=1e-5)
    for name, tensor in extractor.named_parameters():
        np.testing.assert_allclose(
            tiny.state.dense[name], tensor.detach().numpy(), rtol=1e-4, atol=2e-6, err_msg=name
        )
    rows = tiny.state.tables[COLUMNS].read_all(tiny.state.round_index)
    np.testing.assert_allclose(rows, columns.numpy(), rtol=1e-4, atol=2e-6)
