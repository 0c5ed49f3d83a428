"""What images that stay files cost a round, and whether memory stays flat: `python -m benchmarks.image_files`.

    a  time that training waits for images / time of the round, at 224 px with augmentation            at most 0.10
       the round on files / the same round on pixels that are in memory                                (for comparison)
       the same in CPU time of all threads, which is what counts where every core trains                (for comparison)
    b  growth of the peak of memory over a pass through 100,000 records, in MB                          at most 50

A round has 4 clients of 16 examples in batches of 8, on MobileNetV3-Large with d = 64, one thread of training.  Images are
JPEG files of the size of ImageNet's, cut by `random_crop`, and large photographs, cut by `scale_and_aspect`.  Rounds on
files and on pixels come in turns; the first of each run, in which torch makes itself ready, is not counted.  A pass through
100,000 records decodes as many files of 160 x 120 in batches of 32, announced as to a client; the peak at its end is
compared with that after the first 5,000.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fedss.api.runs import simulate
from ondevice.contract.choice import Choice
from ondevice.contract.lazy_features import announced, in_round
from ondevice.contract.vocabulary import IMAGES, ExampleSet
from server_sim.data.image_files import ImageFiles, image_files_entry, open_image_files, path_array
from server_sim.data.population import Records, lay_out, open_population, write_arrays, write_population

NUM_CLIENTS, PER_CLIENT, SIZE = 4, 16, 224
CASES = (((500, 375), "random_crop"), ((1600, 1200), "scale_and_aspect"))
RECORDS, WARM = 100_000, 5_000
CHANGES = {
    "model.architecture": "mobilenet_v3_large",
    "model.pretrained": None,
    "client.batch_size": 8,
    "client.learning_rate": 0.0,
    "server.clients_per_round": NUM_CLIENTS,
    "server.rounds": 2,
    "evaluation.every": 1000,
}


Figures = NDArray[np.float64]


class Waiting:
    """Seconds that somebody waited for an image, while this is open."""

    def __enter__(self) -> Waiting:
        self.seconds = 0.0
        self._taken = ImageFiles.__getitem__

        def timed(files: ImageFiles, which: Any) -> Any:
            started = time.perf_counter()
            images = self._taken(files, which)
            self.seconds += time.perf_counter() - started
            return images

        ImageFiles.__getitem__ = timed  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        ImageFiles.__getitem__ = self._taken  # type: ignore[method-assign]


def write_photograph(path: Path, width: int, height: int, rng: np.random.Generator) -> None:
    """Large shapes and fine grain: a JPEG of about the bytes per pixel of a photograph."""
    shapes = Image.fromarray(rng.integers(0, 256, (height // 25, width // 25, 3), np.uint8))
    pixels = np.asarray(shapes.resize((width, height), Image.Resampling.BICUBIC)).astype(np.int16)
    grain = pixels + rng.integers(-8, 9, pixels.shape, np.int16)
    Image.fromarray(grain.clip(0, 255).astype(np.uint8)).save(path, quality=85)


def write_populations(folder: Path, size: tuple[int, int], augmentation: str) -> tuple[Path, Path]:
    """The same clients on files, and on pixels that were cut from them before."""
    rng = np.random.default_rng(0)
    count = NUM_CLIENTS * PER_CLIENT + 1
    (folder / "images").mkdir(parents=True)
    for number in range(count):
        write_photograph(folder / "images" / f"{number}.jpg", *size, rng)
    records = Records(
        classes=[str(number % 10) for number in range(count)],
        users=[str(number // PER_CLIENT) for number in range(count)],
        is_test=[number == count - 1 for number in range(count)],
    )
    paths = path_array([f"{number}.jpg" for number in range(count)])
    entry = image_files_entry(folder / "images", Choice(augmentation, {"size": SIZE}))
    about: dict[str, Any] = {"name": "photographs", "seed": 0, "recipe": {}}
    write_arrays(folder / "files", lay_out(records), {IMAGES: paths}, image_files=entry, **about)
    pixels = np.asarray(open_image_files(paths, entry))
    shape = (3, SIZE, SIZE)
    write_population(folder / "pixels", records, lambda rows: pixels[rows], image_shape=shape, **about)
    return folder / "files", folder / "pixels"


def run_rounds(folder: Path, population: Path) -> Figures:
    """Seconds, CPU seconds and seconds of waiting, of all rounds but the first."""
    marks = []
    with Waiting() as waiting:

        def mark(_: object) -> None:
            marks.append(np.array([time.perf_counter(), time.process_time(), waiting.seconds]))

        changes = {**CHANGES, "data.population": str(population)}
        simulate("glyphs-tiny", overrides=changes, out=folder, cache=folder.parent, on_round=mark)
    figures: Figures = marks[-1] - marks[0]
    return figures


def rounds_on_files(folder: Path, size: tuple[int, int], augmentation: str, turns: int) -> dict[str, float]:
    files, pixels = write_populations(folder, size, augmentation)
    totals = np.zeros((2, 3))
    for turn in range(turns):
        for contender, population in enumerate((files, pixels)):
            totals[contender] += run_rounds(folder / f"run-{turn}-{contender}", population)
    (seconds, cpu, waiting), (seconds_in_memory, cpu_in_memory, _) = totals.tolist()
    return {
        "waiting": waiting / seconds,
        "seconds": seconds / seconds_in_memory,
        "cpu": cpu / cpu_in_memory,
    }


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000


def pass_through(folder: Path) -> None:
    """In a process of its own; prints by how much the peak grew, and what passed."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    distinct = 200
    for number in range(distinct):
        write_photograph(folder / f"{number}.jpg", 160, 120, rng)
    records = Records(
        classes=[str(number % 100) for number in range(RECORDS + 1)],
        users=[""] * (RECORDS + 1),
        is_test=[number == RECORDS for number in range(RECORDS + 1)],
    )
    paths = path_array([f"{number % distinct}.jpg" for number in range(RECORDS + 1)])
    entry = image_files_entry(folder, Choice("scale_and_aspect", {"size": 96}))
    about: dict[str, Any] = {"name": "photographs", "seed": 0, "recipe": {}}
    write_arrays(folder / "population", lay_out(records), {IMAGES: paths}, image_files=entry, **about)
    population = open_population(folder / "population")
    examples: ExampleSet = in_round(population.client_examples(0), 1, 0)
    order = np.random.default_rng(1).permutation(RECORDS)
    images = examples.features[IMAGES]
    warm_peak = passed = 0.0
    for number, batch in enumerate(announced(examples, iter(np.array_split(order, RECORDS // 32)))):
        passed += images[batch].nbytes
        if number == WARM // 32:
            warm_peak = peak_mb()
    print(peak_mb() - warm_peak, passed / 1e6)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=2, help="of each contender")
    parser.add_argument("--parts", default="ab", help="which of the figures above")
    parser.add_argument("--out", type=Path, help="also write the figures to this JSON file")
    parser.add_argument("--pass-through", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.pass_through:
        pass_through(options.pass_through)
        return 0
    rows: list[dict[str, Any]] = []

    def tell(figure: str, value: float, at_most: float | None = None) -> None:
        target = "(for comparison)" if at_most is None else f"(at most {at_most:g})"
        print(f"{figure:<80} {value:>8.2f}   {target}", flush=True)
        rows.append({"figure": figure, "value": value} | ({} if at_most is None else {"at_most": at_most}))

    for size, augmentation in CASES if "a" in options.parts else ():
        with TemporaryDirectory() as path:
            found = rounds_on_files(Path(path), size, augmentation, options.turns)
        what = f"{size[0]} x {size[1]}, {augmentation}"
        tell(f"a {what}: waiting / round", found["waiting"], 0.1)
        tell(f"  {what}: files / memory, seconds", found["seconds"])
        tell(f"  {what}: files / memory, CPU seconds", found["cpu"])
    if "b" in options.parts:
        with TemporaryDirectory() as path:
            command = [sys.executable, "-m", "benchmarks.image_files", "--pass-through", path]
            ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        growth, passed = map(float, ended.stdout.split())
        tell("b growth of the peak over 100,000 records, in MB", growth, 50)
        tell("  pixels that passed, in MB", passed)
    if options.out:
        options.out.write_text(json.dumps(rows, indent=2) + "\n")
    return int(any("at_most" in row and not row["value"] <= row["at_most"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
