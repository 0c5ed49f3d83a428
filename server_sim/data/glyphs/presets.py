"""The glyphs data sets: characters as classes, font faces as authors, thousands of classes and no download.

A preset names the sizes; `glyph_alphabet` says which characters there are and what they look like, `glyph_dealing` who
owns which, `glyph_rendering` distorts and draws them.  `materialize` does all this once and keeps the result as a
population's folder.
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

from ondevice.contract.vocabulary import IMAGES
from server_sim.data.glyphs.alphabet import (
    FACES,
    LOOK_ALIKE,
    SHAPE_BOX,
    SHAPE_SIZE,
    Alphabet,
    distinct_characters,
    face_hashes,
)
from server_sim.data.glyphs.dealing import ByClient, ByFace, deal_test, deal_train
from server_sim.data.glyphs.rendering import IMAGE_SIZE, RANGES, draw_distortions, render
from server_sim.data.population import Population, Progress, Records, open_population, write_population

RENDERING_VERSION = 1  # raise it when a change of the code changes the pixels or the deal


@dataclass(frozen=True)
class Preset:
    name: str
    train: ByClient | ByFace
    num_classes: int  # that clients hold
    test_images_per_class: int
    num_unseen_classes: int = 0  # that only the test holds; when 0, the test shows the clients' classes
    min_faces: int = 8  # in how many faces a class is drawn
    max_faces: int = len(FACES)
    last_code_point: int = 0x10FFFF
    seed: int = 0


_PRESETS = (
    # Landmarks-User-160k: 164,172 images of 2,028 classes by 1,262 authors, of about 130 images in 90 classes.
    Preset("glyphs-2028", ByClient(1262, 130, 90, spread=0.3), num_classes=2028, test_images_per_class=2),
    # SOP: 596 clients of 100 images in 20 classes, and a test on classes that no client has.
    Preset(
        "glyphs-retrieval",
        ByClient(596, 100, 20),
        num_classes=1000,
        num_unseen_classes=1000,
        test_images_per_class=5,
    ),
    # A tenth of the classes, and more test images of each: experiments of minutes.
    Preset("glyphs-200", ByClient(100, 100, 20, spread=0.3), num_classes=200, test_images_per_class=5),
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
PRESETS = {preset.name: preset for preset in _PRESETS}


def materialize(preset_name: str, cache_dir: Path, progress: Progress | None = None) -> Path:
    """The folder of a preset's population under `cache_dir`, rendered if it is not there yet, and verified.

    The folder's name carries a digest of the recipe, so a changed recipe never meets old pixels.  Several processes may
    call this at once: each renders into a folder of its own, and the first to finish wins.
    """
    if preset_name not in PRESETS:
        raise ValueError(f"no glyphs data set is called {preset_name!r}; there are {', '.join(PRESETS)}")
    return materialize_preset(PRESETS[preset_name], cache_dir, progress)


def materialize_preset(preset: Preset, cache_dir: Path, progress: Progress | None = None) -> Path:
    """`materialize` for a preset of one's own."""
    recipe = _recipe(preset)
    digest = hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()[:12]
    directory = Path(cache_dir) / f"{preset.name}-{digest}"
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
        "distortions": RANGES,
        "faces": face_hashes(),
    }


def _render_population(
    directory: Path, preset: Preset, recipe: dict[str, Any], progress: Progress | None
) -> None:
    alphabet = _alphabet_of(preset)
    deal_rng, pixel_rng = np.random.default_rng(preset.seed).spawn(2)
    train_classes, test_classes = _split_classes(preset, len(alphabet.characters), deal_rng)
    train = deal_train(preset.train, train_classes, alphabet.covered, FACES, deal_rng)
    test = deal_test(preset.test_images_per_class, test_classes, alphabet.covered, deal_rng)
    faces = np.concatenate([train.faces, test.faces])
    characters = np.concatenate([train.characters, test.characters])
    distortions = draw_distortions(len(characters), pixel_rng)

    def images_of(rows: NDArray[np.int64]) -> NDArray[np.uint8]:
        glyphs = zip(faces[rows].tolist(), characters[rows].tolist(), strict=True)
        return render([alphabet.shapes[glyph] for glyph in glyphs], distortions, rows)

    write_population(
        directory,
        Records(
            classes=[alphabet.characters[number] for number in characters],
            users=train.users + test.users,
            is_test=[False] * len(train.users) + [True] * len(test.users),
        ),
        images_of,
        name=preset.name,
        image_shape=(1, IMAGE_SIZE, IMAGE_SIZE),
        seed=preset.seed,
        recipe={**recipe, "pillow": PIL.__version__, "freetype": features.version("freetype2")},
        progress=progress,
    )


def _alphabet_of(preset: Preset) -> Alphabet:
    # What looks like a character in more than max_faces faces is dropped first: that character comes before it.
    alphabet = distinct_characters(min_faces=preset.min_faces, last_code_point=preset.last_code_point)
    return alphabet.part(np.flatnonzero(alphabet.covered.sum(axis=0) <= preset.max_faces).tolist())


def _split_classes(
    preset: Preset, num_characters: int, rng: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The characters of the clients' classes and of the test's."""
    wanted = preset.num_classes + preset.num_unseen_classes
    if wanted > num_characters:
        raise ValueError(
            f"{preset.name} wants {wanted} classes, but there are {num_characters} distinct characters in "
            f"{preset.min_faces} to {preset.max_faces} faces; ask for fewer classes or fewer faces"
        )
    numbers = np.arange(wanted)  # an alphabet begins with the characters in the most faces
    if preset.num_unseen_classes == 0:
        return numbers, numbers
    rng.shuffle(numbers)
    return numbers[: preset.num_classes], numbers[preset.num_classes :]


def contact_sheet(population: Population, path: Path, num_classes: int = 20) -> None:
    """A picture of some classes (rows) in all faces (columns), one training image each, as the clients hold them."""
    num_classes = min(num_classes, population.num_classes)
    classes = np.linspace(0, population.num_classes - 1, num_classes).astype(int).tolist()
    cells = np.full((num_classes, IMAGE_SIZE, len(FACES), IMAGE_SIZE), np.nan, dtype=np.float32)
    for client_id in population.client_ids:
        face = FACES.index(population.client_names[client_id].split()[-1])
        examples = population.client_examples(client_id)
        for row in np.flatnonzero(np.isin(classes, examples.labels)):
            first = np.flatnonzero(examples.labels == classes[row])[0]
            cells[row, :, face] = 255 - examples.features[IMAGES][first, 0]  # as ink on paper
    figure = Figure(figsize=(9, 0.48 * num_classes + 1.8), layout="constrained")
    axes = figure.subplots()
    sheet = cells.reshape(num_classes * IMAGE_SIZE, len(FACES) * IMAGE_SIZE)
    axes.imshow(sheet, cmap="gray", vmin=0, vmax=255, interpolation="nearest")
    rows, columns = (
        np.arange(count) * IMAGE_SIZE + IMAGE_SIZE / 2 - 0.5 for count in (num_classes, len(FACES))
    )
    names = [population.class_names[number] for number in classes]
    labels = [f"U+{ord(name):04X}  {name}" for name in names]
    axes.set_yticks(rows, labels, family=["DejaVu Sans", "DejaVu Sans Mono", "DejaVu Serif", "STIXGeneral"])
    axes.set_xticks(columns, FACES, rotation=60, ha="left", rotation_mode="anchor")
    axes.tick_params(length=0, top=False, bottom=False, labeltop=True, labelbottom=False)
    axes.spines[:].set_visible(False)
    axes.set_title(
        f"{population.name}: {num_classes} of {population.num_classes:,} classes, by the authors' faces"
    )
    figure.savefig(path, dpi=150)
