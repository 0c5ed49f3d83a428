"""The network for CIFAR of the FedVC paper (section 6.5), beside one in plain lines."""

from __future__ import annotations

import torch
from torch import nn

from ondevice.contract.vocabulary import StepSpec
from ondevice.model.extractors import build_extractor
from ondevice.model.extractors.small_images import TwoConvolutions


def test_it_is_the_papers_up_to_the_classifier() -> None:
    """Two convolutions of 64 channels with pooling, fully connected layers of 384 and 192, and a ReLU behind each."""
    ours = build_extractor(StepSpec("two_convolutions", 192, (3, 32, 32)))
    assert isinstance(ours, TwoConvolutions)
    papers = nn.Sequential(
        nn.Conv2d(3, 64, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(64, 64, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 8 * 8, 384),
        nn.ReLU(),
        nn.Linear(384, 192),
        nn.ReLU(),
    )
    papers.load_state_dict(dict(zip(papers.state_dict(), ours.state_dict().values(), strict=True)))
    images = torch.rand(4, 3, 32, 32)
    found = ours.embed(images)
    torch.testing.assert_close(found, papers(images))
    assert found.min() == 0 < found.max()
