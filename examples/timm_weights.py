"""Weights of a timm network, trained for a short while on characters outside the task and saved as timm's are.

They have timm's own names, BatchNorm statistics and a classifier: a checkpoint of its hub where nothing can be downloaded.

    python -m examples.timm_weights --name mobilenetv3_small_050 --out timm.pth
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F

import fedss
from ondevice.contract.vocabulary import StepSpec
from ondevice.model.extractors.foreign import build_foreign

BATCH_SIZE = 64


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--name", default="mobilenetv3_small_050", help="of timm's networks")
    parser.add_argument("--population", default="glyphs-pretrain", help="a glyphs preset, or a folder")
    parser.add_argument("--steps", type=int, default=300, help="of 64 images")
    parser.add_argument("--out", type=Path, default=Path("timm.pth"))
    options = parser.parse_args()
    population = fedss.open_population(options.population)
    examples = population.train
    arguments = {"num_classes": population.num_classes}
    spec = StepSpec(
        f"timm:{options.name}", image_shape=population.image_shape, architecture_arguments=arguments
    )
    torch.manual_seed(0)
    network = build_foreign(spec).train()
    optimizer = torch.optim.AdamW(network.parameters(), 2e-3)
    rng = np.random.default_rng(0)
    # A small network on small images waits for a second thread longer than it gains by it.
    torch.set_num_threads(1)
    for step in range(options.steps):
        batch = rng.integers(0, len(examples), BATCH_SIZE)
        pixels = torch.from_numpy(examples.features["images"][batch]).float()
        loss = F.cross_entropy(network((pixels / 255 - 0.5) / 0.5), torch.from_numpy(examples.labels[batch]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 99:
            print(f"{step + 1} of {options.steps} steps: loss {loss.item():.2f}")
    torch.save(network.state_dict(), options.out)


if __name__ == "__main__":
    main()
