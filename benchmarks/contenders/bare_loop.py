"""A bare torch loop: the same steps in as few lines as possible; no wire, no checks, one model, the mean of the clients."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

from benchmarks.contenders.problem import CLIENTS, LEARNING_RATE, SPEC, Problem, write_outcome
from benchmarks.contenders.turns import turns
from ondevice.model.extractors import build_extractor
from ondevice.model.objectives.sampled_softmax import class_logits


def main(scheme: str, outcome: Path) -> None:
    torch.set_num_threads(1)
    problem = Problem(scheme)
    clients = problem.client_data()
    extractor = build_extractor(SPEC)
    first = {name: torch.from_numpy(value) for name, value in problem.dense.items()}
    for number in turns():
        mean = {name: np.zeros_like(value) for name, value in problem.dense.items()}
        columns = problem.columns.copy()
        for client in clients:
            extractor.load_state_dict(first)
            rows = torch.nn.Parameter(torch.from_numpy(problem.columns[client.ids]))
            optimizer = torch.optim.SGD([*extractor.parameters(), rows], lr=LEARNING_RATE)
            for images, labels in client.batches():
                logits = class_logits(extractor(images), rows, "cosine") + client.adjust
                loss = functional.cross_entropy(logits, labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            for name, value in extractor.named_parameters():
                mean[name] += value.detach().numpy() / CLIENTS
            columns[client.ids] += (rows.detach().numpy() - problem.columns[client.ids]) / CLIENTS
        if number == 0:
            write_outcome(outcome, mean, columns)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
