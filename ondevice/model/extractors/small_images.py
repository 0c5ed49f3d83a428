"""Small extractors for small images: the two-convolution network of FedVC section 6.5, and one with GroupNorm."""

from __future__ import annotations

import math

from torch import Tensor, nn
from torch.nn import functional as F

from ondevice.contract.vocabulary import StepSpec
from ondevice.model.extractors.extractor import ImageExtractor


class TwoConvolutions(ImageExtractor):
    """The LeNet-like network of "Federated Visual Classification" section 6.5 (CIFAR): two 5x5, 64-channel convolutions,
    each followed by 2x2 max-pooling, then fully connected layers of 384 and of the embedding's size (192 in the paper), all
    of them with ReLU: only the classifier is linear."""

    def __init__(self, spec: StepSpec) -> None:
        super().__init__(spec)
        channels, height, width = spec.image_shape
        if height < 4 or width < 4:
            raise ValueError(
                f"two_convolutions pools twice, so images need 4 x 4 pixels or more; got {height} x {width}"
            )
        self.conv1 = nn.Conv2d(channels, 64, 5, padding=2)
        self.conv2 = nn.Conv2d(64, 64, 5, padding=2)
        self.hidden = nn.Linear(64 * (height // 4) * (width // 4), 384)
        self.embedding = nn.Linear(384, spec.embedding_dim)

    def embed(self, images: Tensor) -> Tensor:
        features = F.max_pool2d(F.relu(self.conv1(images)), 2)
        features = F.max_pool2d(F.relu(self.conv2(features)), 2)
        return F.relu(self.embedding(F.relu(self.hidden(features.flatten(1)))))


class ThreeConvolutions(ImageExtractor):
    """Three strided 3x3 convolutions with GroupNorm: what the glyphs experiments train.

    The last feature map is flattened, not pooled: where a stroke lies is what tells characters apart."""

    def __init__(self, spec: StepSpec) -> None:
        super().__init__(spec)
        channels, height, width = spec.image_shape
        self.conv1 = nn.Conv2d(channels, 32, 3, stride=2, padding=1, bias=False)
        self.norm1 = nn.GroupNorm(8, 32)
        self.conv2 = nn.Conv2d(32, 64, 3, stride=2, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(8, 64)
        self.conv3 = nn.Conv2d(64, 128, 3, stride=2, padding=1, bias=False)
        self.norm3 = nn.GroupNorm(8, 128)
        self.embedding = nn.Linear(128 * math.ceil(height / 8) * math.ceil(width / 8), spec.embedding_dim)

    def embed(self, images: Tensor) -> Tensor:
        features = F.relu(self.norm1(self.conv1(images)))
        features = F.relu(self.norm2(self.conv2(features)))
        features = F.relu(self.norm3(self.conv3(features)))
        embeddings: Tensor = self.embedding(features.flatten(1))
        return embeddings
