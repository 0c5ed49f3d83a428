"""FedSS in a hundred plain lines: Algorithm 1 of the paper with for-loops, numpy and torch, and nothing of this project.

It is slow and holds everything at once: slices, messages, exported steps and lazy momentum are what the project is for.
This file is what it must agree with; `tests/claims/test_plain_twin.py` compares the two, round for round.

    python examples/plain_fedss.py        trains a toy federation and prints its loss
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

SCALE = 20.0  # of the cosine logits, section A.2


@dataclass
class Model:
    """What the server holds: φ, the columns of W as rows [n, d], and the velocity of its momentum."""

    extractor: nn.Module
    W: Tensor
    velocity: dict[str, Tensor] = field(default_factory=dict)

    def weights(self) -> dict[str, Tensor]:
        return {**dict(self.extractor.named_parameters()), "W": self.W}


@dataclass
class Client:
    """What one phone holds."""

    inputs: Tensor
    labels: Tensor


@dataclass
class Training:
    batch_size: int = 32
    learning_rate: float = 0.05
    server_momentum: float = 0.9


@dataclass
class Draws:
    """What is left to chance: which other classes a client asks for, and in which order it sees its examples."""

    negatives: Callable[[int, Sequence[int]], Sequence[int]]  # (client, its classes P_k) -> N_k
    order: Callable[[int, int], Sequence[int]]  # (client, number of examples) -> their order


def sampled_softmax_loss(features: Tensor, columns: Tensor, targets: Tensor, log_count: Tensor) -> Tensor:
    """Equations 3 to 5, one example after the other.  `columns` are those of S_k, `targets` positions among them."""
    total = torch.zeros(())
    for feature, target in zip(features, targets.tolist(), strict=True):
        logits = [SCALE * torch.cosine_similarity(feature, column, dim=0) for column in columns]
        # The target is always there; every other class counts for as many as it was drawn for.
        adjusted = [o if j == target else o - log_count[j] for j, o in enumerate(logits)]
        total = total - logits[target] + torch.logsumexp(torch.stack(adjusted), 0)
    return total / len(features)


def train_client(
    model: Model,
    client: Client,
    chosen: Sequence[int],
    log_count: Tensor,
    order: Sequence[int],
    training: Training,
) -> float:
    """Lines 8 to 10: one epoch of SGD on the extractor and the columns of S_k, in place; the mean loss."""
    position = {label: at for at, label in enumerate(chosen)}
    columns = model.W[list(chosen)].clone().requires_grad_()
    weights = [*model.extractor.parameters(), columns]
    total = 0.0
    for start in range(0, len(order), training.batch_size):
        batch = list(order[start : start + training.batch_size])
        targets = torch.tensor([position[label] for label in client.labels[batch].tolist()])
        loss = sampled_softmax_loss(model.extractor(client.inputs[batch]), columns, targets, log_count)
        for weight, gradient in zip(weights, torch.autograd.grad(loss, weights), strict=True):
            weight.data -= training.learning_rate * gradient
        total += loss.item() * len(batch)
    model.W[list(chosen)] = columns.detach()
    return total / len(order)


def run_round(model: Model, clients: Sequence[Client], draws: Draws, training: Training) -> float:
    """Lines 4 to 13: the model is changed in place; the mean loss of the clients."""
    before = {name: tensor.detach().clone() for name, tensor in model.weights().items()}
    sums = {name: torch.zeros_like(tensor) for name, tensor in before.items()}
    examples, losses = 0, 0.0
    for k, client in enumerate(clients):
        positives = sorted(set(client.labels.tolist()))  # P_k
        negatives = draws.negatives(k, positives)  # line 5
        chosen = sorted({*positives, *negatives})  # S_k; lines 6 and 7 would send it and its columns
        share = len(negatives) / (len(model.W) - len(positives)) if negatives else 1.0
        log_count = torch.tensor([0.0 if c in positives else float(np.log(share)) for c in chosen])
        count = len(client.labels)
        losses += count * train_client(model, client, chosen, log_count, draws.order(k, count), training)
        examples += count
        for name, tensor in model.weights().items():  # line 11: the difference; line 12: weighted by examples
            sums[name] += count * (tensor.detach() - before[name])
            tensor.data.copy_(before[name])  # the next client starts from the server's weights too
    for name, tensor in model.weights().items():  # line 13, with momentum
        faded = training.server_momentum * model.velocity.get(name, torch.zeros_like(sums[name]))
        model.velocity[name] = faded + sums[name] / examples
        tensor.data += model.velocity[name]
    return losses / examples


def main() -> None:
    """Forty classes of noisy points, eight clients with five classes each, ten negatives."""
    random = np.random.default_rng(0)
    torch.manual_seed(0)
    centres = torch.from_numpy(random.standard_normal((40, 16), np.float32))
    clients = []
    for _ in range(8):
        labels = torch.from_numpy(random.choice(random.choice(40, 5, replace=False), 50))
        noise = torch.from_numpy(0.3 * random.standard_normal((50, 16), np.float32))
        clients.append(Client(centres[labels] + noise, labels))
    model = Model(nn.Linear(16, 8), 0.1 * torch.randn(40, 8))
    draws = Draws(
        negatives=lambda _, held: random.choice(
            sorted(set(range(40)) - set(held)), 10, replace=False
        ).tolist(),
        order=lambda _, count: random.permutation(count).tolist(),
    )
    for index in range(10):
        print(f"round {index + 1:2}  loss {run_round(model, clients, draws, Training()):.3f}")


if __name__ == "__main__":
    main()
