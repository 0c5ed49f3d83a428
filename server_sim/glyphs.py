"""The glyphs data sets: characters as classes, font faces as authors, no download.

A client holds some characters of one face, as a photographer holds some landmarks; the presets copy the sizes of the
data sets in the FedSS paper (section 4).  The pixels come from `glyph_alphabet` (which characters, what shapes) and
`glyph_rendering` (random distortions).  `materialize` renders a preset once and keeps it as a population's folder.
"""

import contextlib
import dataclasses
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import PIL
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import features

from server_sim import glyph_rendering
from server_sim.glyph_alphabet import (
    FACES,
    LOOK_ALIKE,
    SHAPE_BOX,
    SHAPE_SIZE,
    Alphabet,
    distinct_characters,
    face_hashes,
)
from server_sim.population import Population, Progress, Records, open_population, write_population

RENDERING_VERSION = 1  # raise it when a change of the code changes the pixels or the deal


@dataclass(frozen=True)
class ByClient:
    """Many clients, each with some characters of one face."""

    num_clients: int
    images_per_client: int  # on average
    classes_per_client: int  # on average
    spread: float = 0.0  # standard deviation of a client's log size


@dataclass(frozen=True)
class ByFace:
    """One client per face, holding all its characters: data to train on centrally, in the same format."""

    images_per_class: int


@dataclass(frozen=True)
class Preset:
    name: str
    train: ByClient | ByFace
    num_classes: int  # that the clients hold
    test_images_per_class: int
    num_test_classes: int | None = (
        None  # disjoint from the clients' classes; None: the test shows the clients' classes
    )
    min_faces: int = 8
    max_faces: int = len(FACES)
    last_code_point: int = 0x10FFFF
    seed: int = 0


PRESETS = {
    preset.name: preset
    for preset in (
        # Landmarks-User-160k: 164,172 images of 2,028 classes with 1,262 authors, of 130 images in 90 classes.
        Preset("glyphs-2028", ByClient(1262, 130, 90, spread=0.3), num_classes=2028, test_images_per_class=2),
        # SOP: 596 clients of 100 images in 20 classes; the test classes are others than the training classes.
        Preset(
            "glyphs-retrieval",
            ByClient(596, 100, 20),
            num_classes=1000,
            num_test_classes=1000,
            test_images_per_class=5,
        ),
        # What ImageNet is to the paper: rarer characters, none of which is, or looks like, a class of the two above.
        Preset(
            "glyphs-pretrain",
            ByFace(images_per_class=40),
            num_classes=1400,
            test_images_per_class=2,
            min_faces=3,
            max_faces=7,
        ),
        # For tests and smoke runs.
        Preset(
            "glyphs-tiny",
            ByClient(12, 30, 10, spread=0.1),
            num_classes=60,
            test_images_per_class=2,
            min_faces=len(FACES),
            last_code_point=0x7E,
        ),
    )
}


@dataclass(frozen=True)
class Deal:
    """Which glyph each image shows and who owns it; one entry per image, training images first."""

    characters: NDArray[np.int64]  # [N] numbers in the alphabet
    faces: NDArray[np.int64]  # [N]
    users: list[str]
    is_test: NDArray[np.bool_]  # [N]


def materialize(preset_name: str, cache_dir: Path, progress: Progress | None = None) -> Path:
    """The folder of a preset's population under `cache_dir`, rendered if it is not there yet, and verified.

    The folder's name carries a digest of the recipe, so a changed recipe never meets old pixels.  Several processes may
    call this at once: each renders into a folder of its own, the first to finish wins.
    """
    if preset_name not in PRESETS:
        raise ValueError(f"no glyphs data set is called {preset_name!r}; there are {', '.join(PRESETS)}")
    preset = PRESETS[preset_name]
    recipe = _recipe(preset)
    digest = hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()[:12]
    directory = Path(cache_dir) / f"{preset_name}-{digest}"
    if not directory.exists():
        with contextlib.suppress(FileExistsError):  # another process was quicker, and its folder is as good
            _render_population(directory, preset, recipe, progress)
    open_population(directory)
    return directory


def _recipe(preset: Preset) -> dict[str, Any]:
    """Everything the pixels depend on, except for the libraries that draw."""
    return {
        "rendering_version": RENDERING_VERSION,
        "preset": dataclasses.asdict(preset),
        "shapes": {"size": SHAPE_SIZE, "box": SHAPE_BOX, "look_alike": LOOK_ALIKE},
        "distortions": glyph_rendering.RANGES,
        "faces": face_hashes(),
    }


def _render_population(
    directory: Path, preset: Preset, recipe: dict[str, Any], progress: Progress | None
) -> None:
    alphabet = _alphabet_of(preset)
    deal = deal_images(preset, alphabet)
    records = Records(
        classes=[alphabet.characters[number] for number in deal.characters.tolist()],
        users=deal.users,
        is_test=deal.is_test.tolist(),
    )
    rng = np.random.default_rng([preset.seed, 1])
    distortions = glyph_rendering.draw_distortions(len(deal.users), rng)

    def images_of(rows: NDArray[np.int64]) -> NDArray[np.uint8]:
        glyphs = zip(deal.faces[rows].tolist(), deal.characters[rows].tolist(), strict=True)
        return glyph_rendering.render([alphabet.shapes[glyph] for glyph in glyphs], distortions, rows)

    write_population(
        directory,
        records,
        images_of,
        name=preset.name,
        image_shape=(1, glyph_rendering.IMAGE_SIZE, glyph_rendering.IMAGE_SIZE),
        seed=preset.seed,
        recipe=recipe
        | {"drawn_with": {"pillow": PIL.__version__, "freetype": features.version("freetype2")}},
        progress=progress,
    )


def _alphabet_of(preset: Preset) -> Alphabet:
    alphabet = distinct_characters(min_faces=preset.min_faces, last_code_point=preset.last_code_point)
    return alphabet.part(np.flatnonzero(alphabet.covered.sum(axis=0) <= preset.max_faces).tolist())


def deal_images(preset: Preset, alphabet: Alphabet) -> Deal:
    """Deal the characters to train and test, and the training images to users."""
    rng = np.random.default_rng([preset.seed, 0])
    wanted = preset.num_classes + (preset.num_test_classes or 0)
    if wanted > len(alphabet.characters):
        raise ValueError(
            f"{preset.name} wants {wanted} classes, the faces draw {len(alphabet.characters)} distinct characters "
            f"in {preset.min_faces} to {preset.max_faces} faces; ask for fewer classes or fewer faces"
        )
    numbers = np.arange(wanted)  # the first are in the most faces
    if preset.num_test_classes is None:
        train_classes = test_classes = numbers
    else:
        rng.shuffle(numbers)
        train_classes, test_classes = numbers[: preset.num_classes], numbers[preset.num_classes :]
    if isinstance(preset.train, ByClient):
        hands = _deal_to_clients(preset.train, train_classes, alphabet.covered, rng)
    else:
        hands = _deal_to_faces(preset.train, train_classes, alphabet.covered, rng)
    # The last hand is nobody's: the test split, in faces that differ within a class as far as there are enough.
    test_hand = _spread_over_faces(test_classes, preset.test_images_per_class, alphabet.covered, rng)
    num_train = sum(len(characters) for _, _, characters in hands)
    return Deal(
        characters=np.concatenate([*(characters for _, _, characters in hands), test_hand[0]]),
        faces=np.concatenate(
            [*(np.full(len(characters), face) for _, face, characters in hands), test_hand[1]]
        ),
        users=[user for user, _, characters in hands for _ in characters] + [""] * len(test_hand[0]),
        is_test=np.arange(num_train + len(test_hand[0])) >= num_train,
    )


Hand = tuple[str, int, NDArray[np.int64]]  # a user's name and face, and the character of each of its images


def _deal_to_clients(
    rule: ByClient, classes: NDArray[np.int64], covered: NDArray[np.bool_], rng: np.random.Generator
) -> list[Hand]:
    # In proportion to the characters a face has, so that no face has to deal the same few again and again.
    share = np.cumsum(covered[:, classes].sum(axis=1) / covered[:, classes].sum())
    faces = np.searchsorted(share, (np.arange(rule.num_clients) + 0.5) / rule.num_clients)
    rng.shuffle(faces)
    times_dealt = np.zeros(covered.shape[1])  # to how many clients each character went
    hands = []
    for client, face in enumerate(faces.tolist()):
        size = rule.images_per_client * rng.lognormal(
            -(rule.spread**2) / 2, rule.spread
        )  # of mean images_per_client
        num_images = max(1, round(size))
        num_classes = min(num_images, max(1, round(size * rule.classes_per_client / rule.images_per_client)))
        available = rng.permutation(classes[covered[face, classes]])
        # The least dealt first, at random among equals: no class is left out, which chance alone would do when small.
        held = available[np.argsort(times_dealt[available], kind="stable")][:num_classes]
        times_dealt[held] += 1
        more = rng.choice(held, num_images - len(held))
        hands.append((f"{client:04d} {FACES[face]}", face, np.concatenate([held, more])))
    return hands


def _deal_to_faces(
    rule: ByFace, classes: NDArray[np.int64], covered: NDArray[np.bool_], rng: np.random.Generator
) -> list[Hand]:
    characters, faces = _spread_over_faces(classes, rule.images_per_class, covered, rng)
    return [(FACES[face], face, characters[faces == face]) for face in np.unique(faces).tolist()]


def _spread_over_faces(
    classes: NDArray[np.int64], images_per_class: int, covered: NDArray[np.bool_], rng: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Characters and faces of images that take each class through its faces in random order, again and again."""
    faces = [
        np.resize(rng.permutation(np.flatnonzero(covered[:, number])), images_per_class) for number in classes
    ]
    return np.repeat(classes, images_per_class), np.concatenate(faces)


# One after the other, until one has the character.
_LABEL_FONTS = ["DejaVu Sans", "DejaVu Sans Mono", "DejaVu Serif", "STIXGeneral"]


def contact_sheet(population: Population, path: Path, num_classes: int = 20) -> None:
    """A picture of some classes (rows) in all faces (columns), one training image each, as the clients hold them."""
    size = glyph_rendering.IMAGE_SIZE
    classes = (
        np.linspace(0, population.num_classes - 1, min(num_classes, population.num_classes))
        .astype(int)
        .tolist()
    )
    sheet = np.full(
        (len(classes) * size, len(FACES) * size), np.nan, dtype=np.float32
    )  # NaN: nobody holds it
    for client_id in population.client_ids:
        column = FACES.index(population.client_names[client_id].split()[-1])
        examples = population.client_examples(client_id)
        for row in np.flatnonzero(np.isin(classes, examples.labels)).tolist():
            image = examples.images[np.flatnonzero(examples.labels == classes[row])[0], 0]
            sheet[row * size : (row + 1) * size, column * size : (column + 1) * size] = 255 - image
    figure = Figure(figsize=(9, 0.48 * len(classes) + 1.8), layout="constrained")
    axes = figure.subplots()
    axes.imshow(sheet, cmap="gray", vmin=0, vmax=255, interpolation="nearest")
    middle = (np.arange(max(len(classes), len(FACES))) + 0.5) * size - 0.5
    names = [population.class_names[number] for number in classes]
    axes.set_yticks(
        middle[: len(classes)], [f"U+{ord(name):04X}  {name}" for name in names], family=_LABEL_FONTS
    )
    axes.set_xticks(middle[: len(FACES)], FACES, rotation=60, ha="left", rotation_mode="anchor")
    axes.tick_params(length=0, top=False, bottom=False, labeltop=True, labelbottom=False)
    axes.spines[:].set_visible(False)
    axes.set_title(
        f"{population.name}: {len(classes)} of {population.num_classes} classes, in the faces of their authors"
    )
    figure.savefig(path, dpi=150)
