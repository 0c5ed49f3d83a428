"""A population of image files that are cut in another way, as a folder of its own: the same index with another manifest."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

from ondevice.contract.choice import Choice, chosen
from server_sim.data.augmentations import AUGMENTATIONS
from server_sim.data.image_files import image_files_entry
from server_sim.data.made_once import made_once
from server_sim.data.population import Population, unfinished
from server_sim.data.population_files import MANIFEST, read_manifest


def materialize_augmentation(population: Population, augmentation: Choice, cache: Path) -> Path:
    """The folder under `cache`, written if it is not there yet."""
    if population.image_files is None:
        raise ValueError(
            f"{population.name} holds examples that are ready for a network, and no image files; leave it out"
        )
    chosen(AUGMENTATIONS, augmentation, "augmentation")
    source = hashlib.sha256((population.directory / MANIFEST).read_bytes()).hexdigest()
    recipe = {"augmentation": augmentation.to_document(), "manifest_sha256": source}

    def write(directory: Path) -> None:
        manifest = read_manifest(population.directory)
        manifest["image_files"] = image_files_entry(Path(manifest["image_files"]["root"]), augmentation)
        manifest["recipe"] = {**recipe, "of": population.recipe}
        with unfinished(directory) as folder:
            for name in manifest["files"]:
                shutil.copyfile(population.directory / name, folder / name)
            text = json.dumps(manifest, indent=1, ensure_ascii=False)
            (folder / MANIFEST).write_text(text, encoding="utf-8")

    return made_once(cache, population.name, recipe, write)
