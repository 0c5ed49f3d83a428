"""Image files and their table become a population; what is wrong with either is said with file and line."""

from pathlib import Path

import pytest
from PIL import Image

from server_sim.data.image_folder import import_image_folder
from server_sim.data.population import open_population
from server_sim.data.population_files import PopulationError

TABLE = """split,path,user,class,licence
train,red.png,ann,warm,free
train,nested/blue.png,ben,cold,free
test,wide.png,,cold,free
"""


@pytest.fixture
def table(tmp_path: Path) -> Path:
    folder = tmp_path / "pictures"
    (folder / "nested").mkdir(parents=True)
    Image.new("RGB", (8, 8), (255, 0, 0)).save(folder / "red.png")
    Image.new("RGB", (16, 16), (0, 0, 255)).save(folder / "nested" / "blue.png")
    wide = Image.new("RGB", (24, 8), (255, 255, 255))  # white but for a green square in the middle
    wide.paste((0, 255, 0), (8, 0, 16, 8))
    wide.save(folder / "wide.png")
    (folder / "table.csv").write_text(TABLE)
    return folder / "table.csv"


def test_files_become_examples_of_their_users_and_classes(table: Path, tmp_path: Path) -> None:
    import_image_folder(table, tmp_path / "out", name="colours", image_size=8)
    population = open_population(tmp_path / "out")
    assert (population.name, population.image_shape) == ("colours", (3, 8, 8))
    assert population.client_names == ("ann", "ben")
    assert population.class_names == ("cold", "warm")
    ann, ben = population.client_examples(0), population.client_examples(1)
    assert (ann.labels.tolist(), ann.features["images"][0, :, 3, 5].tolist()) == ([1], [255, 0, 0])
    assert (ben.labels.tolist(), ben.features["images"][0, :, 3, 5].tolist()) == ([0], [0, 0, 255])


def test_the_middle_square_of_an_oblong_image_is_taken(table: Path, tmp_path: Path) -> None:
    import_image_folder(table, tmp_path / "out", name="colours", image_size=8)
    wide = open_population(tmp_path / "out").test.features["images"][0]
    assert wide[:, 4, 0].tolist() == wide[:, 4, 7].tolist() == [0, 255, 0]


def test_grayscale_images_have_one_channel(table: Path, tmp_path: Path) -> None:
    import_image_folder(table, tmp_path / "out", name="colours", image_size=4, grayscale=True)
    population = open_population(tmp_path / "out")
    assert population.image_shape == (1, 4, 4)
    assert population.client_examples(0).features["images"][0, 0, 0, 0] == 76  # red's share of luminance


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("user,class", "owner,class", r"lacks user; its first line must name path, user, class, split"),
        ("test,wide", "dev,wide", r"table\.csv, line 4: split is 'dev', expected train or test"),
        ("ben,cold", ",cold", r"table\.csv, line 3: user is empty"),
        ("red.png,ann,warm,free", "red.png", r"table\.csv, line 2: user is empty"),
        ("red.png", "rot.png", r"rot\.png does not exist; correct the table"),
        ("red.png", "table.csv", r"table\.csv is not an image that Pillow reads"),
        ("red.png", '"red.png', r"table\.csv is not a CSV file"),
        ("red.png", "nested", r"nested cannot be read"),
    ],
)
def test_a_wrong_table_is_refused_and_nothing_written(
    table: Path, tmp_path: Path, before: str, after: str, message: str
) -> None:
    assert before in TABLE
    table.write_text(TABLE.replace(before, after, 1))
    with pytest.raises(PopulationError, match=message):
        import_image_folder(table, tmp_path / "out", name="colours", image_size=8)
    assert [path.name for path in tmp_path.iterdir()] == ["pictures"]


def test_a_truncated_image_is_named(table: Path, tmp_path: Path) -> None:
    blue = table.parent / "nested" / "blue.png"
    blue.write_bytes(blue.read_bytes()[:-30])
    with pytest.raises(PopulationError, match=r"blue\.png cannot be read"):
        import_image_folder(table, tmp_path / "out", name="colours", image_size=8)


def test_a_missing_table_is_named(tmp_path: Path) -> None:
    with pytest.raises(PopulationError, match=r"table\.csv does not exist; it should be a CSV file"):
        import_image_folder(tmp_path / "table.csv", tmp_path / "out", name="colours", image_size=8)
