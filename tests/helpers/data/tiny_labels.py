"""Sparse examples of several classes: in memory for a client, and as files of the Extreme Classification repository or of
Debian's package index."""

from __future__ import annotations

import lzma
from dataclasses import replace
from pathlib import Path

import numpy as np

from helpers.federations.conversation_case import PLAN
from ondevice.contract.choice import Choice
from ondevice.contract.hashing.label_hashes import LabelHashes
from ondevice.contract.vocabulary import (
    CLASSES,
    FEATURE_IDS,
    FEATURE_VALUES,
    NO_CLASS,
    ExampleSet,
    RoundPlan,
    StepSpec,
)

VOCABULARY, PLACES, MOST_CLASSES, NUM_CLASSES = 40, 6, 3, 30
TABLES, BUCKETS = 3, 8


def sparse_spec(num_outputs: int, sub_models: int) -> StepSpec:
    sizes = {"vocabulary": VOCABULARY, "words": PLACES, "hidden": 8, "sub_models": sub_models}
    return StepSpec(
        "sparse_network", num_outputs, objective="binary_cross_entropy", architecture_arguments=sizes
    )


FEDMLH = sparse_spec(TABLES * BUCKETS, TABLES)
FEDAVG = sparse_spec(NUM_CLASSES, 1)
UNHASHED = replace(PLAN, table_sizes={}, sampler=Choice("class_outputs"))


def hashed(num_buckets: int = BUCKETS, **changes: int) -> RoundPlan:
    """A round of FedMLH; `changes` are what a wrong plan says of its hash functions."""
    hashes = LabelHashes(TABLES, num_buckets, seed=9)
    settings = {
        "num_tables": TABLES,
        "num_buckets": num_buckets,
        "seed": hashes.seed,
        "fingerprint": hashes.fingerprint,
    }
    return replace(UNHASHED, sampler=Choice("label_hashes", {**settings, **changes}))


def tiny_labels(count: int, seed: int) -> ExampleSet:
    random = np.random.default_rng(seed)
    classes = np.sort(random.integers(0, NUM_CLASSES, (count, MOST_CLASSES)), axis=1)
    # Lists of one to three classes.
    classes[np.arange(MOST_CLASSES) >= random.integers(1, MOST_CLASSES + 1, count)[:, None]] = NO_CLASS
    values = random.random((count, PLACES), np.float32)
    values[:, -1] = 0
    ids = random.integers(0, VOCABULARY, (count, PLACES))
    return ExampleSet({FEATURE_IDS: ids, FEATURE_VALUES: values, CLASSES: classes}, classes[:, 0].copy())


def write_repository_files(
    folder: Path, *, num_features: int, num_classes: int, examples: tuple[int, int] = (60, 20), seed: int = 0
) -> Path:
    """train.txt and test.txt as they are published; a class is where its feature is, so there is something to learn."""
    random = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    known = random.choice(min(num_features, num_classes), 200, replace=False)
    for split, count in zip(("train", "test"), examples, strict=True):
        lines = [f"{count} {num_features} {num_classes}"]
        for _ in range(count):
            # The first of them are the frequent ones.
            own = sorted(set(known[(200 * random.random(3) ** 3).astype(int)].tolist()))
            features = " ".join(f"{feature}:{random.uniform(0.5, 2):.6f}" for feature in own)
            lines.append(f"{','.join(map(str, own))} {features}")
        (folder / f"{split}.txt").write_text("\n".join(lines) + "\n")
    return folder


def write_debian_index(folder: Path, num_packages: int = 150) -> tuple[Path, Path]:
    """Packages.xz and Translation-en.xz as a mirror has them; a package is described by words of what it depends on."""
    random = np.random.default_rng(0)
    packages, descriptions = [], []
    for number in range(num_packages):
        # The first libraries are the frequent ones.
        depends = sorted(set((20 * random.random(3) ** 2).astype(int).tolist()))
        packages.append(
            f"Package: app{number}\nMaintainer: M <m{number % 7}@example.org>\nSection: misc\n"
            f"Depends: {', '.join(f'lib{library} (>= 1.0)' for library in depends)}\nDescription-md5: {number}\n"
        )
        words = " ".join(f"word{library}" for library in depends)
        descriptions.append(
            f"Package: app{number}\nDescription-md5: {number}\nDescription-en: short\n {words}\n"
        )
    paths = folder / "Packages.xz", folder / "Translation-en.xz"
    for path, paragraphs in zip(paths, (packages, descriptions), strict=True):
        path.write_bytes(lzma.compress("\n".join(paragraphs).encode()))
    return paths
