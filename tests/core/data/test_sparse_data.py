"""Sparse examples of several classes: the repository's files, Debian's index, feature hashing and the split by classes."""

from __future__ import annotations

import lzma
from pathlib import Path

import numpy as np
import pytest
from helpers.data.tiny_labels import write_repository_files

from ondevice.contract.choice import Choice
from ondevice.contract.vocabulary import CLASSES, FEATURE_IDS, FEATURE_VALUES, NO_CLASS
from server_sim.data.fetched import debian_index
from server_sim.data.partitioners import NOBODY, Pool
from server_sim.data.partitioners.frequent_classes import FrequentClasses
from server_sim.data.population import open_population
from server_sim.data.population_files import PopulationError
from server_sim.data.published import extreme_classification
from server_sim.data.published.extreme_classification import Published
from server_sim.data.repartition import materialize_partition
from server_sim.data.sparse_examples import FeatureHashing, SparseExamples

TINY = Published("tiny-xc", 300, 250, FeatureHashing(dimension=64, places=2))


def test_other_files_make_another_population(tmp_path: Path) -> None:
    source = write_repository_files(tmp_path / "files", num_features=300, num_classes=250)
    first = extreme_classification.materialize(TINY, tmp_path / "cache", source)
    assert extreme_classification.materialize(TINY, tmp_path / "cache", source) == first
    test = source / "test.txt"
    head, _, rest = test.read_text().partition("\n")
    test.write_text(head + "\n" + rest.replace(":", ":1", 1))
    assert extreme_classification.materialize(TINY, tmp_path / "cache", source) != first


def test_the_repository_s_files_become_a_population(tmp_path: Path) -> None:
    source = write_repository_files(tmp_path / "files", num_features=300, num_classes=250)
    (source / "train.txt").rename(source / "tiny_train.txt")
    population = open_population(extreme_classification.materialize(TINY, tmp_path / "cache", source))
    lines = (source / "tiny_train.txt").read_text().splitlines()[1:]
    assert len(population.train) == len(lines) == 60
    assert population.num_classes == 250
    for number, line in enumerate(lines):
        first, _, rest = line.partition(" ")
        held = population.train.features[CLASSES][number]
        assert held[held != NO_CLASS].tolist() == sorted(map(int, first.split(",")))
        pairs = [word.split(":") for word in rest.split()]
        ids, values = TINY.hashing.hashed(
            np.array([int(feature) for feature, _ in pairs]),
            np.array([float(value) for _, value in pairs], np.float32),
        )
        kept = population.train.features[FEATURE_VALUES][number]
        assert population.train.features[FEATURE_IDS][number, : len(ids)].tolist() == ids.tolist()
        assert np.linalg.norm(kept) == pytest.approx(1, abs=1e-6)
        np.testing.assert_array_equal(kept[: len(values)], values)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("5 300\n", "line 1 is '5 300'; expected three numbers: examples, features and classes"),
        ("1 300 999\n1 2:1\n", "says 300 features and 999 classes; tiny-xc has 300 and 250"),
        ("2 300 250\n1 2:1\n", "has 1 examples, its first line says 2: it is not whole"),
        ("1 300 250\n1,x 2:1\n", "line 2 is '1,x 2:1'; expected classes between commas"),
        ("1 300 250\n250 2:1\n", "line 2 has class 250; the first line says that they are below 250"),
        ("1 300 250\n1 -1:1\n", "line 2 has feature -1; the first line says that they are below 300"),
        ("1 300 250\n1 2:nan\n", "line 2 has a value that is no finite number"),
    ],
)
def test_a_file_that_is_none_is_refused_by_line(content: str, message: str, tmp_path: Path) -> None:
    source = write_repository_files(tmp_path / "files", num_features=300, num_classes=250)
    (source / "test.txt").write_text(content)
    with pytest.raises(PopulationError, match=message):
        extreme_classification.materialize(TINY, tmp_path / "cache", source)
    assert not list((tmp_path / "cache").glob("*"))
    (source / "test.txt").unlink()
    with pytest.raises(PopulationError, match="has none of the files"):
        extreme_classification.materialize(TINY, tmp_path / "cache", source)


def test_examples_without_a_class_or_a_feature_are_left_out(tmp_path: Path) -> None:
    source = write_repository_files(tmp_path / "files", num_features=300, num_classes=250)
    (source / "train.txt").write_text("4 300 250\n1 2:1\n2:1 3:1\n 2:1\n7 \n")
    population = open_population(extreme_classification.materialize(TINY, tmp_path / "cache", source))
    assert population.train.features[CLASSES].tolist() == [[1, NO_CLASS, NO_CLASS]]


def test_hashed_features_keep_inner_products_on_average() -> None:
    random = np.random.default_rng(0)
    hashing = FeatureHashing(dimension=512, places=512)
    dense = np.zeros((2, 40, 512))
    features = np.stack([random.choice(100_000, 30, replace=False) for _ in range(40)])
    shared = features.copy()
    shared[:, :15] += 100_000
    for side, rows in enumerate((features, shared)):
        for number, row in enumerate(rows):
            ids, values = hashing.hashed(row, np.ones(30, np.float32))
            dense[side, number, ids] = values
    # Half of the features are shared.
    assert (dense[0] * dense[1]).sum(1).mean() == pytest.approx(0.5, abs=0.03)


INDEX = {
    "Packages.xz": """Package: editor
Source: editor-src (1.0)
Maintainer: Ann <ANN@example.org>
Section: editors
Depends: libc6 (>= 2.3), editor-data, libx | liby [amd64]
Description-md5: 1
Description: short words

Package: editor-data
Source: editor-src
Maintainer: Ann <ann@example.org>
Section: editors
Depends: libx
Description: data words

Package: player
Maintainer: Ben <ben@example.org>
Section: sound
Pre-Depends: libc6
Depends: libx:any, rare
Description: plays sound
""",
    "Translation-en.xz": """Package: editor
Description-md5: 1
Description-en: short words
 A long description
 of words.
""",
}


def test_debian_s_index_becomes_documents(tmp_path: Path) -> None:
    paths = []
    for name, text in INDEX.items():
        paths.append(tmp_path / name)
        paths[-1].write_bytes(lzma.compress(text.encode()))
    documents = debian_index.read_documents(*paths)
    assert [(each.package, each.source, each.maintainer) for each in documents] == [
        ("editor", "editor-src", "ann@example.org"),
        ("editor-data", "editor-src", "ann@example.org"),
        ("player", "player", "ben@example.org"),
    ]
    # Not on its own source; the first alternative; no versions and architectures.
    assert [set(each.depends) for each in documents] == [
        {"libc6", "libx"},
        {"libx"},
        {"libc6", "libx", "rare"},
    ]
    assert documents[0].words["words"] == 2
    assert documents[0].words["section_editors"] == 1
    examples, class_names = debian_index.examples_of(documents, FeatureHashing(16, 4))
    assert class_names == ["libc6", "libx"]
    assert len(examples) == 3


def test_clients_of_frequent_classes_get_all_examples_of_theirs(tmp_path: Path) -> None:
    source = write_repository_files(tmp_path / "files", num_features=300, num_classes=250)
    before = open_population(extreme_classification.materialize(TINY, tmp_path / "cache", source))
    classes = np.asarray(before.train.features[CLASSES])
    partitioner = FrequentClasses(num_clients=4, num_frequent=3)
    pool = Pool(np.asarray(before.train.labels), np.zeros(60, np.int64), classes=classes)
    owners = partitioner.owners(pool, np.random.default_rng(1))
    assert owners.shape == (60, 4)
    assert (owners != NOBODY).any(1).all()
    counts = np.bincount(classes[classes != NO_CLASS])
    for frequent in np.argsort(-counts, kind="stable")[:3]:
        having = (classes == frequent).any(1)
        assert ((owners[having] != NOBODY).all(0)).sum() >= 1
    # As a folder: an example of two clients is there twice, and classes keep their ids.
    choice = Choice("frequent_classes", {"num_clients": 4, "num_frequent": 3})
    after = open_population(materialize_partition(before, choice, 1, tmp_path / "cache"))
    assert len(after.client_ids) == 4
    assert len(after.train) == (owners != NOBODY).sum()
    assert after.num_classes == before.num_classes
    first = np.flatnonzero(owners[:, 0] != NOBODY)
    for name in (CLASSES, FEATURE_IDS, FEATURE_VALUES):
        np.testing.assert_array_equal(
            after.client_examples(0).features[name], before.train.features[name][first]
        )
        np.testing.assert_array_equal(after.test.features[name], before.test.features[name])
    with pytest.raises(ValueError, match="got nothing; expected fewer clients"):
        FrequentClasses(1000, 3).owners(pool, np.random.default_rng(0))


def test_an_example_without_a_class_is_refused() -> None:
    examples = SparseExamples(FeatureHashing(8, 2))
    with pytest.raises(PopulationError, match="example 0 has no class"):
        examples.add(np.array([1]), np.ones(1, np.float32), [], user="ann", is_test=False)
