"""Data sets by name: `data.population` in an experiment, and `fedss data NAME`.

Adding one is a file that makes the folder of a population, and a line in `DATA_SETS`.  It is made on first use, in the
cache, and found there again.  A published data set is read from the folder with its files: `data.source`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from server_sim.data.fetched import chitchat, cjk, debian_index, fashion_mnist, icons, quickdraw, rfc
from server_sim.data.glyphs import presets as glyphs
from server_sim.data.glyphs.dealing import ByClient
from server_sim.data.population import Progress
from server_sim.data.published import (
    cifar,
    extreme_classification,
    imagenet,
    inaturalist,
    landmarks,
    online_products,
    stack_overflow,
)
from server_sim.data.published.extreme_classification import PUBLISHED, Published

Materialize = Callable[[Path, Progress | None], Path]
"""Cache -> the folder of the population, made if it is not there yet."""
MaterializeFrom = Callable[[Path, Path, Progress | None], Path]
"""The same with the folder of the published files before the progress."""


class DataSetError(ValueError):
    """A data set that cannot be made as asked; names the setting."""


@dataclass(frozen=True)
class DataSet:
    """One that can be made from nothing, or from a package that is fetched."""

    summary: str
    """For people, in a line."""
    materialize: Materialize
    num_clients: int | None = None
    """Where it is known before the data set is made."""


@dataclass(frozen=True)
class PublishedDataSet:
    """One whose files somebody has downloaded."""

    summary: str
    materialize: MaterializeFrom
    num_clients: int | None = None


def _of_glyphs(preset: glyphs.Preset) -> DataSet:
    clients = preset.train.num_clients if isinstance(preset.train, ByClient) else None
    summary = f"{preset.num_classes:,} characters, drawn in the fonts that matplotlib carries"
    return DataSet(summary, partial(glyphs.materialize, preset.name), clients)


def _of_inaturalist(split: inaturalist.Split, clients: str) -> PublishedDataSet:
    summary = f"photographs of 1,203 species by {clients} (iNaturalist 2017)"
    return PublishedDataSet(summary, partial(inaturalist.materialize, split))


def _of_repository(published: Published) -> PublishedDataSet:
    summary = f"{published.num_classes:,} classes of the Extreme Classification repository, from its train and test files"
    return PublishedDataSet(summary, partial(extreme_classification.materialize, published))


def _of_stack_overflow(vocabulary: stack_overflow.Vocabulary) -> PublishedDataSet:
    summary = f"sentences of 342,477 people on Stack Overflow, for next-word prediction at {vocabulary.num_tokens:,} words"
    return PublishedDataSet(summary, partial(stack_overflow.materialize, vocabulary), 342_477)


DATA_SETS: dict[str, DataSet | PublishedDataSet] = {
    **{name: _of_glyphs(preset) for name, preset in glyphs.PRESETS.items()},
    landmarks.NAME: PublishedDataSet(
        "2,028 landmarks, photographed by 1,262 authors (Google Landmarks v2)", landmarks.materialize
    ),
    inaturalist.USER_120K.name: _of_inaturalist(inaturalist.USER_120K, "9,275 users"),
    **{
        split.name: _of_inaturalist(split, f"cells of at most {label}")
        for label, split in inaturalist.GEO.items()
    },
    "cifar-10": PublishedDataSet(
        "10 classes, 32 x 32, no authors", partial(cifar.materialize, cifar.CIFAR_10)
    ),
    "cifar-100": PublishedDataSet(
        "100 classes, 32 x 32, no authors", partial(cifar.materialize, cifar.CIFAR_100)
    ),
    online_products.NAME: PublishedDataSet(
        "22,634 products on sale; tested on those that nobody trains on", online_products.materialize
    ),
    imagenet.NAME: PublishedDataSet("21,841 classes in folders, clients of 20 of them", imagenet.materialize),
    chitchat.NAME: DataSet(
        "chats of 1,306 people, for next-word prediction at 10,000 words", chitchat.materialize
    ),
    rfc.NAME: DataSet(
        "RFCs by their first authors, for next-word prediction at 80,000 words (Debian's section non-free, 476 MB)",
        rfc.materialize,
    ),
    **{vocabulary.name: _of_stack_overflow(vocabulary) for vocabulary in stack_overflow.VOCABULARIES},
    "icons-3k": DataSet(
        "2,787 things as 231 sets of icons draw them (npm, 104 MB)",
        partial(icons.materialize, icons.ICONS_3K),
    ),
    "icons-11k": DataSet(
        "10,831 things as 235 sets of icons draw them (npm, 104 MB)",
        partial(icons.materialize, icons.ICONS_11K),
    ),
    quickdraw.NAME: DataSet(
        "345 things that people drew in 20 seconds (npm, 14 MB)",
        quickdraw.materialize,
        quickdraw.CLIENTS.num_clients,
    ),
    fashion_mnist.NAME: DataSet(
        "ten kinds of clothes (Debian, 31 MB)", fashion_mnist.materialize, fashion_mnist.CLIENTS.num_clients
    ),
    cjk.NAME: DataSet(
        "21,590 Han characters in seven fonts (Debian, 84 MB)", cjk.materialize, cjk.CLIENTS.num_clients
    ),
    debian_index.NAME: DataSet(
        "Debian's package index: descriptions, and what packages depend on; maintainers are the clients",
        debian_index.materialize,
    ),
    **{published.name: _of_repository(published) for published in PUBLISHED},
}


def materialize(name: str, source: Path | None, cache: Path, progress: Progress | None = None) -> Path:
    """The folder of a data set's population, made on first use."""
    data_set = DATA_SETS[name]
    if isinstance(data_set, PublishedDataSet):
        if source is None:
            raise DataSetError(
                f"data.source is not given, and {name} is read from the folder with its published files; "
                "name it: --source FOLDER of fedss data, --set data.source=FOLDER of fedss simulate"
            )
        return data_set.materialize(cache, source, progress)
    if source is not None:
        raise DataSetError(f"data.source is {source}, but {name} has no files of yours; leave it out")
    return data_set.materialize(cache, progress)
