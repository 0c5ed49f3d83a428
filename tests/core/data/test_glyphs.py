"""The glyphs data sets: distinct characters, one face per client, the same pixels every time."""

import json
import subprocess
import sys
import unicodedata
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from server_sim.data.glyphs import presets as glyphs
from server_sim.data.glyphs.alphabet import FACES, Alphabet, distinct_characters
from server_sim.data.glyphs.dealing import ByClient, ByFace, deal_test, deal_train
from server_sim.data.glyphs.rendering import Distortions, draw_distortions, render
from server_sim.data.population import Population, open_population
from server_sim.data.population_files import PopulationError


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def tiny(cache: Path) -> Population:
    return open_population(glyphs.materialize("glyphs-tiny", cache))


@pytest.fixture(scope="module")
def european() -> Alphabet:
    """Latin, Greek and Cyrillic letters in 12 or more faces."""
    return distinct_characters(min_faces=12, last_code_point=0x42F)


# --- which characters


@pytest.mark.parametrize(
    ("letter", "look_alikes"),
    [
        ("A", "\N{GREEK CAPITAL LETTER ALPHA}\N{CYRILLIC CAPITAL LETTER A}"),
        ("B", "\N{GREEK CAPITAL LETTER BETA}\N{CYRILLIC CAPITAL LETTER VE}"),
        ("O", "\N{GREEK CAPITAL LETTER OMICRON}\N{CYRILLIC CAPITAL LETTER O}"),
        ("2", "\N{SUPERSCRIPT TWO}"),
        ("R", "\N{LATIN LETTER SMALL CAPITAL R}"),
    ],
)
def test_of_characters_that_look_alike_only_the_first_stays(
    european: Alphabet, letter: str, look_alikes: str
) -> None:
    assert letter in european.characters
    assert not set(look_alikes) & set(european.characters)


def test_letters_numbers_and_signs_stay_and_marks_and_blanks_do_not(european: Alphabet) -> None:
    assert {"Ω", "Б", "Æ", "ß", "5", "é", "+", "?"} <= set(european.characters)
    assert {unicodedata.category(character)[0] for character in european.characters} == set("LNPS")
    assert not set("\N{SPACE}\N{NO-BREAK SPACE}\N{SOFT HYPHEN}") & set(european.characters)


def test_every_covered_glyph_has_a_centred_shape_that_fills_the_box(european: Alphabet) -> None:
    assert set(european.shapes) == {tuple(pair) for pair in np.argwhere(european.covered).tolist()}
    for shape in european.shapes.values():
        left, top, right, bottom = shape.getbbox() or (0, 0, 0, 0)
        assert abs(left + right - 48) <= 2
        assert abs(top + bottom - 48) <= 2
        assert 42 <= max(right - left, bottom - top) <= 44  # anti-aliasing may fade the outermost row


# --- how they are drawn


def still(rows: int) -> Distortions:
    """Distortions that distort nothing."""
    return Distortions(
        shift=np.zeros((rows, 2)),
        rotation=np.zeros(rows),
        glyph_size=np.full(rows, 22.0),
        blur=np.zeros(rows, dtype=np.float32),
        noise=np.zeros(rows, dtype=np.float32),
        noise_start=np.zeros(rows, dtype=np.int64),
        noise_bank=np.ones(4096, dtype=np.float32),
    )


@pytest.fixture(scope="module")
def bar() -> Image.Image:
    """A horizontal bar as a shape."""
    shape = Image.new("L", (48, 48))
    shape.paste(255, (2, 20, 46, 28))
    return shape


def centre_of_ink(image: NDArray[np.uint8]) -> tuple[float, float]:
    weights = image[0].astype(float)
    down, right = np.indices(weights.shape) + 0.5
    return float((weights * right).sum() / weights.sum()), float((weights * down).sum() / weights.sum())


def ink_box(image: NDArray[np.uint8]) -> tuple[int, int]:
    inked = image[0] > 127
    return int(inked.any(axis=0).sum()), int(inked.any(axis=1).sum())  # width, height


def test_a_glyph_undistorted_is_centred_and_of_the_size_asked(bar: Image.Image) -> None:
    images = render([bar, bar], replace(still(2), glyph_size=np.array([22.0, 10.0])), np.arange(2))
    assert images.shape == (2, 1, 32, 32)
    for image, size in zip(images, [(22, 4), (10, 2)], strict=True):
        assert centre_of_ink(image) == pytest.approx((16, 16), abs=0.01)
        assert ink_box(image) == size


def test_shift_moves_right_and_down(bar: Image.Image) -> None:
    (image,) = render([bar], replace(still(1), shift=np.array([[2.0, -1.5]])), np.arange(1))
    assert centre_of_ink(image) == pytest.approx((18, 14.5), abs=0.05)


def test_a_quarter_turn_makes_the_bar_upright(bar: Image.Image) -> None:
    (image,) = render([bar], replace(still(1), rotation=np.array([np.pi / 2])), np.arange(1))
    assert ink_box(image) == (4, 22)


def test_blur_spreads_ink_to_the_neighbours_and_loses_none(bar: Image.Image) -> None:
    sharp, soft = render(
        [bar] * 2, replace(still(2), blur=np.array([0, 0.25], dtype=np.float32)), np.arange(2)
    )
    assert soft.sum() == pytest.approx(int(sharp.sum()), rel=0.01)
    middle = sharp[0, :, 16].astype(float)
    expected = (
        0.5 * middle + 0.25 * np.roll(middle, 1) + 0.25 * np.roll(middle, -1)
    )  # rows are alike around there
    np.testing.assert_allclose(soft[0, :, 16], expected, atol=0.51)


def test_noise_has_the_strength_asked_and_differs_between_images() -> None:
    drawn = draw_distortions(200, np.random.default_rng(0))
    noisy = replace(
        still(200),
        noise=np.full(200, 10, dtype=np.float32),
        noise_start=drawn.noise_start,
        noise_bank=drawn.noise_bank,
        glyph_size=np.full(200, 64.0),  # larger than the image, which is then all paper or all ink
    )
    images = render([Image.new("L", (48, 48), 128)] * 200, noisy, np.arange(200))
    assert images.std() == pytest.approx(10, rel=0.02)
    assert len({image.tobytes() for image in images}) == 200


def test_an_image_does_not_depend_on_those_rendered_with_it(bar: Image.Image) -> None:
    distortions = draw_distortions(5, np.random.default_rng(3))
    together = render([bar] * 5, distortions, np.arange(5))
    apart = [render([bar], distortions, np.array([row]))[0] for row in (4, 2, 0, 1, 3)]
    np.testing.assert_array_equal(together[[4, 2, 0, 1, 3]], apart)


# --- who gets which


@pytest.fixture(scope="module")
def covered() -> NDArray[np.bool_]:
    """As of 2,028 characters: all faces have a few, most have more, the last have fewest."""
    reach = np.linspace(2028, 500, len(FACES)).astype(int)
    return np.arange(2028)[None, :] < reach[:, None]


def test_a_deal_of_the_size_of_landmarks_has_its_figures(covered: NDArray[np.bool_]) -> None:
    rule = ByClient(num_clients=1262, images_per_client=130, classes_per_client=90, spread=0.3)
    deal = deal_train(rule, np.arange(2028), covered, FACES, np.random.default_rng(0))
    users, sizes = np.unique(deal.users, return_counts=True)
    assert len(users) == 1262
    assert sizes.mean() == pytest.approx(130, rel=0.03)
    assert sizes.std() > 20
    classes_per_client = len(set(zip(deal.users, deal.characters.tolist(), strict=True))) / 1262
    assert classes_per_client == pytest.approx(90, rel=0.03)
    assert set(deal.characters.tolist()) == set(range(2028))
    assert covered[deal.faces, deal.characters].all()


def test_a_client_has_one_face(covered: NDArray[np.bool_]) -> None:
    deal = deal_train(ByClient(50, 20, 5), np.arange(2028), covered, FACES, np.random.default_rng(0))
    for user in set(deal.users):
        mine = np.array(deal.users) == user
        assert [FACES[face] for face in set(deal.faces[mine].tolist())] == [user.split()[-1]]


def test_faces_get_clients_in_proportion_to_their_characters(covered: NDArray[np.bool_]) -> None:
    deal = deal_train(ByClient(1000, 1, 1), np.arange(2028), covered, FACES, np.random.default_rng(0))
    clients = np.bincount(deal.faces, minlength=len(FACES))
    np.testing.assert_allclose(clients, 1000 * covered.sum(axis=1) / covered.sum(), atol=1)


def test_no_class_is_left_out_when_clients_are_just_enough() -> None:
    everywhere = np.ones((len(FACES), 60), dtype=bool)
    deal = deal_train(ByClient(12, 5, 5), np.arange(60), everywhere, FACES, np.random.default_rng(0))
    assert sorted(deal.characters.tolist()) == list(range(60))


def test_test_images_of_a_class_are_in_different_faces(covered: NDArray[np.bool_]) -> None:
    deal = deal_test(5, np.arange(400), covered, np.random.default_rng(0))
    assert len(set(zip(deal.characters.tolist(), deal.faces.tolist(), strict=True))) == 5 * 400


def test_a_deal_by_face_gives_every_class_its_images(covered: NDArray[np.bool_]) -> None:
    deal = deal_train(ByFace(images_per_class=20), np.arange(2028), covered, FACES, np.random.default_rng(0))
    assert np.bincount(deal.characters).tolist() == [20] * 2028
    assert deal.users == [FACES[face] for face in deal.faces]
    assert covered[deal.faces, deal.characters].all()


# --- whole data sets


def test_tiny_is_what_it_says(tiny: Population) -> None:
    assert (tiny.num_classes, len(tiny.client_ids), tiny.image_shape) == (60, 12, (1, 32, 32))
    assert len(tiny.class_names) == 60
    sizes = [tiny.num_examples(client) for client in tiny.client_ids]
    assert np.mean(sizes) == pytest.approx(30, abs=3)
    assert np.bincount(tiny.test.labels).tolist() == [2] * 60
    assert set(tiny.train.labels.tolist()) == set(range(60))
    assert tiny.recipe["faces"].keys() == set(FACES)


def test_no_test_image_is_a_training_image(tiny: Population) -> None:
    train = {image.tobytes() for image in tiny.train.features["images"]}
    assert len(train) == len(tiny.train)
    assert not train & {image.tobytes() for image in tiny.test.features["images"]}


def test_images_show_the_character_of_their_label_in_the_face_of_their_owner(tiny: Population) -> None:
    alphabet = distinct_characters(min_faces=len(FACES), last_code_point=0x7E)
    numbers = [alphabet.characters.index(name) for name in tiny.class_names]
    right = 0
    for client_id in tiny.client_ids:
        face = FACES.index(tiny.client_names[client_id].split()[-1])
        shapes = [alphabet.shapes[face, number] for number in numbers]
        undistorted = render(shapes, still(60), np.arange(60)).reshape(60, -1).astype(np.float32)
        examples = tiny.client_examples(client_id)
        seen = examples.features["images"].reshape(len(examples), -1).astype(np.float32)
        nearest = (np.square(undistorted).sum(axis=1) - 2 * seen @ undistorted.T).argmin(axis=1)
        right += int((nearest == examples.labels).sum())
    assert right / len(tiny.train) > 0.6  # chance: 0.017


def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(tiny: Population, tmp_path: Path) -> None:
    again = glyphs.materialize("glyphs-tiny", tmp_path)
    manifests = [json.loads((folder / "manifest.json").read_text()) for folder in (tiny.directory, again)]
    assert manifests[0] == manifests[1]
    other = glyphs.materialize_preset(replace(glyphs.PRESETS["glyphs-tiny"], seed=1), tmp_path)
    assert other != again
    assert not np.array_equal(open_population(other).test.features["images"], tiny.test.features["images"])


def test_unseen_classes_are_only_in_the_test(tmp_path: Path) -> None:
    preset = replace(
        glyphs.PRESETS["glyphs-tiny"], name="glyphs-zero-shot", num_classes=30, num_unseen_classes=40
    )
    population = open_population(glyphs.materialize_preset(preset, tmp_path))
    assert population.num_classes == 30
    assert set(population.train.labels.tolist()) == set(range(30))
    assert set(population.test.labels.tolist()) == set(range(30, 70))


def test_more_classes_than_characters_is_an_error_that_says_how_many_there_are(tmp_path: Path) -> None:
    preset = replace(glyphs.PRESETS["glyphs-tiny"], num_classes=1000)
    with pytest.raises(
        ValueError, match=r"glyphs-tiny wants 1000 classes, but there are \d\d distinct characters"
    ):
        glyphs.materialize_preset(preset, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_name_is_answered_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'glyphs-huge'; there are glyphs-2028, glyphs-retrieval, "):
        glyphs.materialize("glyphs-huge", tmp_path)


def test_a_rendered_data_set_is_kept_and_a_damaged_one_refused(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    folder = glyphs.materialize("glyphs-tiny", tmp_path, progress=lambda *step: seen.append(step))
    assert seen[-1][0] == seen[-1][1] > 400
    seen.clear()
    assert glyphs.materialize("glyphs-tiny", tmp_path, progress=lambda *step: seen.append(step)) == folder
    assert seen == []
    (folder / "client_images.npy").write_bytes(b"")
    with pytest.raises(PopulationError, match=r"client_images\.npy has 0 bytes"):
        glyphs.materialize("glyphs-tiny", tmp_path)


def test_two_processes_that_render_at_once_end_with_one_good_folder(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from server_sim.data.glyphs import presets as glyphs;"
        "print(glyphs.materialize('glyphs-tiny', Path(sys.argv[1])))"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    printed = {process.communicate(timeout=60)[0].strip() for process in processes}
    assert [process.returncode for process in processes] == [0, 0]
    assert [str(path) for path in tmp_path.iterdir()] == list(printed)
    open_population(Path(printed.pop()))


def test_a_contact_sheet_has_a_row_for_every_class(tiny: Population, tmp_path: Path) -> None:
    glyphs.contact_sheet(tiny, tmp_path / "few.png", num_classes=3)
    with Image.open(tmp_path / "few.png") as few:
        assert few.size == (9 * 150, round((0.48 * 3 + 1.8) * 150))


@pytest.mark.slow
def test_there_are_enough_characters_for_every_preset_and_pretraining_shares_none() -> None:
    everything = distinct_characters(min_faces=3)
    coverage = everything.covered.sum(axis=0)
    for preset in glyphs.PRESETS.values():
        enough = (coverage >= preset.min_faces) & (coverage <= preset.max_faces)
        assert enough.sum() >= preset.num_classes + preset.num_unseen_classes
    # The classes of the other presets are the first of all, so that what looks like one of them is not in pretraining.
    pretraining = glyphs.PRESETS["glyphs-pretrain"]
    others = [preset for preset in glyphs.PRESETS.values() if preset is not pretraining]
    assert min(preset.min_faces for preset in others) == pretraining.max_faces + 1 == 8
    common = distinct_characters(min_faces=8)
    assert everything.characters[: len(common.characters)] == common.characters
    assert (coverage[len(common.characters) :] < 8).all()
