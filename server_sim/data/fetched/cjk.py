"""cjk: more than 20,000 Han characters as seven fonts of Debian draw them, for large n.

A class is a character of the two main blocks of Unicode that at least five of the fonts have, a client is an author with
one font, and images are distorted as those of the glyphs are.
"""

from __future__ import annotations

import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import PIL
from matplotlib.ft2font import FT2Font, LoadFlags
from numpy.typing import NDArray
from PIL import Image, features

from ondevice.tools.registries import DebianPackage, fetch, unpack_debian_package
from server_sim.data.glyphs.alphabet import Pen
from server_sim.data.glyphs.dealing import ByClient, deal_test, deal_train
from server_sim.data.glyphs.rendering import IMAGE_SIZE, RANGES, draw_distortions, render
from server_sim.data.made_once import made_once
from server_sim.data.population import Progress, Records, write_population
from server_sim.data.population_files import PopulationError

NAME = "cjk"
CLIENTS = ByClient(1200, images_per_client=120, classes_per_client=100, spread=0.3)
MIN_FONTS = 5
FIRST, LAST = 0x3400, 0x9FFF
"""CJK Unified Ideographs and Extension A: characters that Unicode holds apart, without compatibility forms."""


@dataclass(frozen=True)
class Font:
    package: DebianPackage
    file: str
    """Below /usr/share/fonts/truetype"""
    licence: str


FONTS = (
    Font(
        DebianPackage(
            "fonts-arphic-ukai",
            "0.2.20080216.2-5",
            "b9db73184895b067f7911f9adbf3b137df99c2d4ec5425b4ad779a9834b7110b",
        ),
        "arphic/ukai.ttc",
        "Arphic Public License",
    ),
    Font(
        DebianPackage(
            "fonts-arphic-uming",
            "0.2.20080216.2-11",
            "2676b21b90df94f23418610291b71b43720c95cdccb420b97ab56edfd3ce4cf5",
        ),
        "arphic/uming.ttc",
        "Arphic Public License",
    ),
    Font(
        DebianPackage(
            "fonts-babelstone-han",
            "15.0.5-2",
            "c7b7f9b5b78ad14c94d7e6d2b103307a7a643844c7db856fb97611d9d8a80589",
        ),
        "babelstone/BabelStoneHan.ttf",
        "Arphic Public License; CC-BY-SA-3.0 or CC-BY-SA-4.0",
    ),
    Font(
        DebianPackage(
            "fonts-hanazono",
            "20170904-2.1",
            "a6943366b4f5a6cec34221f8b4eb22555a628f0ee6ef4e3d3401cabe9363aeae",
        ),
        "hanazono/HanaMinA.ttf",
        "Hanazono Font License or OFL-1.1",
    ),
    Font(
        DebianPackage(
            "fonts-ipamj-mincho",
            "005.01-2.1",
            "0dd4990be8d010f13921b1bcac2f9c684e007deae17282cd07dbbfd5b2cd08cb",
        ),
        "ipamj/ipamjm.ttf",
        "IPA Font License",
    ),
    Font(
        DebianPackage(
            "fonts-wqy-microhei",
            "0.2.0-beta-3.1",
            "239163df984eea5c9da3b551aee374936222cdbd67f1a1be3cdcf3d76143ad66",
        ),
        "wqy/wqy-microhei.ttc",
        "GPL-3.0-or-later",
    ),
    Font(
        DebianPackage(
            "fonts-wqy-zenhei",
            "0.9.45-8",
            "cfed2c29164ff2f133e40ed2046610b172b8618d174840936ac4ec9b6fd668e7",
        ),
        "wqy/wqy-zenhei.ttc",
        "GPL-2.0 with font embedding exception; M+ FONTS License",
    ),
)


def materialize(cache: Path, progress: Progress | None = None) -> Path:
    recipe = {
        "version": 1,
        "fonts": [asdict(font) for font in FONTS],
        "clients": asdict(CLIENTS),
        "min_fonts": MIN_FONTS,
        "distortions": RANGES,
    }

    def write(directory: Path) -> None:
        with tempfile.TemporaryDirectory() as unpacked:
            for font in FONTS:
                unpack_debian_package(fetch(font.package, cache), Path(unpacked))
            files = [Path(unpacked) / "usr/share/fonts/truetype" / font.file for font in FONTS]
            write_characters(directory, files, CLIENTS, min_fonts=MIN_FONTS, recipe=recipe, progress=progress)

    return made_once(cache, NAME, recipe, write)


def write_characters(
    directory: Path,
    fonts: list[Path],
    clients: ByClient,
    *,
    min_fonts: int,
    recipe: dict[str, Any],
    first: int = FIRST,
    last: int = LAST,
    progress: Progress | None = None,
    seed: int = 0,
) -> None:
    """A population of the characters `first` to `last` that enough of the fonts draw; a test image of each."""
    characters, covered = common_characters(fonts, min_fonts, first, last)
    deal_rng, pixel_rng = np.random.default_rng(seed).spawn(2)
    classes = np.arange(len(characters))
    train = deal_train(clients, classes, covered, [font.stem for font in fonts], deal_rng)
    test = deal_test(1, classes, covered, deal_rng)
    faces, shown = (
        np.concatenate(pair) for pair in ((train.faces, test.faces), (train.characters, test.characters))
    )
    distortions = draw_distortions(len(shown), pixel_rng)
    pens = [Pen(font) for font in fonts]

    def images_of(rows: NDArray[np.int64]) -> NDArray[np.uint8]:
        glyphs = zip(faces[rows].tolist(), shown[rows].tolist(), strict=True)
        shapes = [_drawn(pens[face], characters[character], fonts[face]) for face, character in glyphs]
        return render(shapes, distortions, rows)

    write_population(
        directory,
        Records(
            classes=[characters[number] for number in shown.tolist()],
            users=train.users + test.users,
            is_test=[False] * len(train.users) + [True] * len(test.users),
        ),
        images_of,
        name=NAME,
        image_shape=(1, IMAGE_SIZE, IMAGE_SIZE),
        seed=seed,
        recipe={**recipe, "pillow": PIL.__version__, "freetype": features.version("freetype2")},
        attribution=_attribution(),
        progress=progress,
    )


def common_characters(
    fonts: list[Path], min_fonts: int, first: int, last: int
) -> tuple[list[str], NDArray[np.bool_]]:
    """The characters that at least `min_fonts` fonts draw, and [fonts, characters]: which do."""
    drawn = [_characters_with_ink(font, first, last) for font in fonts]
    codes = sorted(set().union(*drawn))
    covered = np.array([[code in of_font for code in codes] for of_font in drawn])
    enough = np.flatnonzero(covered.sum(axis=0) >= min_fonts)
    return [chr(codes[number]) for number in enough.tolist()], covered[:, enough]


def _characters_with_ink(font: Path, first: int, last: int) -> set[int]:
    """Without those that the font has a place for, and no outline."""
    face = FT2Font(font)
    return {
        code
        for code, glyph in face.get_charmap().items()
        if glyph and first <= code <= last and any(face.load_glyph(glyph, LoadFlags.NO_SCALE).bbox)
    }


def _drawn(pen: Pen, character: str, font: Path) -> Image.Image:
    shape = pen.draw(character)
    if shape is None:
        raise PopulationError(
            f"{font.name} claims to have U+{ord(character):04X} and draws a blank; leave it out"
        )
    return shape


def _attribution() -> str:
    lines = [
        "The images are characters in these fonts, distorted.",
        "Their terms are in the packages:",
        "",
        "| font | licence |",
        "|---|---|",
    ]
    lines += [f"| {font.package.label} (`{font.file}`) | {font.licence} |" for font in FONTS]
    return "\n".join(lines) + "\n"
