"""Which characters can be classes, and how each looks in each face.

The faces are the 16 text faces that matplotlib carries.  A character is a candidate when enough faces draw it.  Of
characters that look alike (Latin A, Greek Alpha, Cyrillic A) only one stays: a class that no eye can tell from another
would measure luck.  Every glyph is scaled to the same box first, so that a superscript is a look-alike of its letter.

The choice is made in small integers, whose float32 products and sums are exact in any order, so that every BLAS on
every machine keeps the same characters.
"""

import hashlib
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.ft2font import FT2Font
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

FACES = (
    *("DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique", "DejaVuSans-BoldOblique"),
    *("DejaVuSansMono", "DejaVuSansMono-Bold", "DejaVuSansMono-Oblique", "DejaVuSansMono-BoldOblique"),
    *("DejaVuSerif", "DejaVuSerif-Bold", "DejaVuSerif-Italic", "DejaVuSerif-BoldItalic"),
    *("STIXGeneral", "STIXGeneralBol", "STIXGeneralItalic", "STIXGeneralBolIta"),
)
SHAPE_SIZE = 48  # a shape is a picture of 48 x 48 pixels ...
SHAPE_BOX = 44  # ... whose ink fits 44 x 44, centred
_NOTDEF = 0  # the glyph that stands for a missing one
_FONT_SIZE = 64  # pixels per em while drawing, before the scaling to the box
_PAGE = 4 * _FONT_SIZE  # room for the widest and tallest glyphs around the pen

# Two characters look alike when their squared difference is under 6 % of their squared ink, over the faces both have.
# At 5 %, Ü and Ū, Ὠ and Ὡ, 0 and θ stay apart, which 24 noisy pixels hardly do; at 6 %, 2,211 characters remain in
# eight or more faces, and the presets need 2,028.
LOOK_ALIKE = 0.06


@dataclass(frozen=True)
class Alphabet:
    """Mutually distinct characters, those in the most faces first, with their shapes."""

    characters: tuple[str, ...]
    shapes: dict[tuple[int, int], Image.Image]  # (face, character) numbers -> SHAPE_SIZE square, ink 255 on 0
    covered: NDArray[np.bool_]  # [faces, characters]: which faces draw which characters

    def part(self, numbers: Sequence[int]) -> "Alphabet":
        """The characters with these numbers, in this order."""
        place = {old: new for new, old in enumerate(numbers)}
        return Alphabet(
            tuple(self.characters[number] for number in numbers),
            {(face, place[old]): shape for (face, old), shape in self.shapes.items() if old in place},
            self.covered[:, numbers],
        )


def face_path(face: str) -> Path:
    return Path(matplotlib.get_data_path()) / "fonts" / "ttf" / f"{face}.ttf"


def face_hashes() -> dict[str, str]:
    """The sha256 of every face's file: another matplotlib may carry other outlines."""
    return {face: hashlib.sha256(face_path(face).read_bytes()).hexdigest() for face in FACES}


def distinct_characters(*, min_faces: int, last_code_point: int = 0x10FFFF) -> Alphabet:
    """All mutually distinct characters up to `last_code_point` that at least `min_faces` faces draw.

    Characters are admitted in order of falling coverage, then of code point, so a smaller `min_faces` only appends.
    """
    candidates = _draw_candidates(min_faces, last_code_point)
    return candidates.part(_drop_look_alikes(_descriptors(candidates), candidates.covered))


def _draw_candidates(min_faces: int, last_code_point: int) -> Alphabet:
    """All characters in enough faces, look-alikes included, by falling coverage."""
    by_face = [_characters_of(face, last_code_point) for face in FACES]
    mentioned = sorted(set().union(*by_face))
    drawn: dict[str, dict[int, Image.Image]] = {}
    candidates = [name for name in mentioned if sum(name in covered for covered in by_face) >= min_faces]
    for face_number, face in enumerate(FACES):
        pen = Pen(face_path(face))
        for character in candidates:
            if character in by_face[face_number]:
                shape = pen.draw(character)
                if shape is not None:
                    drawn.setdefault(character, {})[face_number] = shape
    enough = [character for character in drawn if len(drawn[character]) >= min_faces]
    enough.sort(key=lambda character: (-len(drawn[character]), character))
    covered = np.zeros((len(FACES), len(enough)), dtype=bool)
    shapes = {}
    for number, character in enumerate(enough):
        for face_number, shape in drawn[character].items():
            covered[face_number, number] = True
            shapes[face_number, number] = shape
    return Alphabet(tuple(enough), shapes, covered)


def _characters_of(face: str, last_code_point: int) -> set[str]:
    """The letters, numbers, punctuation and symbols that a face claims to draw."""
    claimed = FT2Font(face_path(face)).get_charmap().items()
    return {
        chr(code_point)
        for code_point, glyph in claimed
        if glyph != _NOTDEF and code_point <= last_code_point and _is_shape_of_its_own(chr(code_point))
    }


def _is_shape_of_its_own(character: str) -> bool:
    """Whether Unicode takes the character for more than a mark, or another character's style or size."""
    # Marks need a letter to sit on; private-use code points mean another glyph in every face.
    if unicodedata.category(character)[0] not in "LNPS":
        return False
    # A mathematical italic R is the R of an italic face, a superscript n is a small n, once both fill the box.
    style = unicodedata.decomposition(character).split(" ")[0]
    if style in ("<font>", "<super>", "<sub>", "<small>", "<wide>", "<narrow>"):
        return False
    return "SMALL CAPITAL" not in unicodedata.name(character, "")


class Pen:
    """Draws single characters of one face."""

    def __init__(self, face: Path) -> None:
        # The basic layout engine is part of every Pillow; the other one is not.
        layout = ImageFont.Layout.BASIC
        self._font = ImageFont.truetype(face, _FONT_SIZE, layout_engine=layout)
        self._page = Image.new("L", (_PAGE, _PAGE))
        self._draw = ImageDraw.Draw(self._page)

    def draw(self, character: str) -> Image.Image | None:
        """The character scaled to the box and centred, or None where the face draws a blank."""
        self._page.paste(0, (0, 0, _PAGE, _PAGE))
        self._draw.text((_PAGE / 2, _PAGE / 2), character, font=self._font, fill=255, anchor="mm")
        ink = self._page.getbbox()
        if ink is None:
            return None
        glyph = self._page.crop(ink)
        scale = SHAPE_BOX / max(glyph.size)
        width, height = (max(1, round(side * scale)) for side in glyph.size)
        shape = Image.new("L", (SHAPE_SIZE, SHAPE_SIZE))
        resized = glyph.resize((width, height), Image.Resampling.BILINEAR)
        shape.paste(resized, ((SHAPE_SIZE - width) // 2, (SHAPE_SIZE - height) // 2))
        return shape


def _descriptors(alphabet: Alphabet) -> NDArray[np.float32]:
    """Every character's shapes in all faces, at a third of the size and in 16 grey levels: [characters, faces, 256].

    Faces without the character stay 0.  Sixteen levels keep every sum below 2^24, where float32 counts exactly.
    """
    num_faces, num_characters = alphabet.covered.shape
    descriptors = np.zeros((num_characters, num_faces, (SHAPE_SIZE // 3) ** 2), dtype=np.float32)
    for (face, character), shape in alphabet.shapes.items():
        descriptors[character, face] = np.frombuffer(shape.reduce(3).tobytes(), dtype=np.uint8) >> 4
    return descriptors


def _drop_look_alikes(descriptors: NDArray[np.float32], covered: NDArray[np.bool_]) -> list[int]:
    """The numbers of the characters that look like none kept before them.

    With a_f, b_f the descriptors in face f, and sums over the faces that have both characters:
        look-alike  <=>  sum |a_f - b_f|^2 < LOOK_ALIKE * sum (|a_f|^2 + |b_f|^2)
                    <=>  2 sum a_f . b_f > (1 - LOOK_ALIKE) * sum (|a_f|^2 + |b_f|^2)
    A missing face is a zero descriptor, so the left sum needs no mask and is one matrix product.
    """
    num_characters = len(descriptors)
    has = covered.T.astype(np.float32)  # [n, faces]
    energy = np.square(descriptors).sum(axis=2)  # [n, faces]
    flat = descriptors.reshape(num_characters, -1)
    kept: list[int] = []
    for start in range(0, num_characters, 256):
        block = np.arange(start, min(start + 256, num_characters))
        earlier = np.concatenate([np.array(kept, dtype=np.int64), block])
        overlap = 2 * flat[block] @ flat[earlier].T  # [block, earlier]
        ink = energy[block] @ has[earlier].T + has[block] @ energy[earlier].T
        alike = overlap > (1 - LOOK_ALIKE) * ink.astype(np.float64)
        admitted = np.ones(len(earlier), dtype=bool)
        for row, number in enumerate(block):
            column = len(earlier) - len(block) + row  # where the character itself stands
            admitted[column] = not (alike[row, :column] & admitted[:column]).any()
            if admitted[column]:
                kept.append(int(number))
    return kept
