"""The files of a population's folder, checked: its manifest, and every array that the manifest names.

`server_sim.data.population` describes the format.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ondevice.contract.vocabulary import IMAGES
from server_sim.data.fingerprints import Memo, fingerprint, read_memo, write_memo

FORMAT_VERSION = 1
MANIFEST = "manifest.json"
ATTRIBUTION = "ATTRIBUTION.md"
VERIFIED = "verified.json"
LABELS = ("client_labels", "client_offsets", "test_labels")


class PopulationError(ValueError):
    """A population's folder is missing, damaged or of another format."""


def features_of(manifest: Mapping[str, Any]) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Feature -> type and shape of one example."""
    if "features" not in manifest:
        return {IMAGES: ("uint8", tuple(manifest["image_shape"]))}
    return {name: (entry["dtype"], tuple(entry["shape"])) for name, entry in manifest["features"].items()}


def array_names(manifest: Mapping[str, Any]) -> list[str]:
    features = [f"{split}_{name}" for name in features_of(manifest) for split in ("client", "test")]
    return [*features, *LABELS, *(["client_places"] if manifest.get("places") else [])]


def write_manifest(directory: Path, said: Mapping[str, Any]) -> None:
    """What a population says of itself, and the size and hash of every array that lies there."""
    files = {f"{array}.npy": fingerprint(directory / f"{array}.npy") for array in array_names(said)}
    manifest = {"format_version": FORMAT_VERSION, **said, "files": files}
    text = json.dumps(manifest, indent=1, ensure_ascii=False)
    (directory / MANIFEST).write_text(text, encoding="utf-8")


def read_manifest(directory: Path) -> dict[str, Any]:
    path = directory / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise PopulationError(f"{path} does not exist: {directory} is not a population's folder") from None
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise PopulationError(f"{path} is not JSON ({error}); {_MAKE_ANEW.format(directory)}") from None
    version = manifest.get("format_version") if isinstance(manifest, dict) else None
    if version != FORMAT_VERSION:
        raise PopulationError(
            f"{path} has format version {version!r}, this program reads {FORMAT_VERSION}; "
            + _MAKE_ANEW.format(directory)
        )
    keys = _MANIFEST_KEYS | (
        {"features": dict, "tables": dict} if "features" in manifest else {"image_shape": list}
    )
    for key, kind in keys.items():
        if not isinstance(manifest.get(key), kind):
            raise PopulationError(
                f"{path} has {key} = {manifest.get(key)!r}, expected {kind.__name__}; "
                + _MAKE_ANEW.format(directory)
            )
    return dict(manifest)


_MAKE_ANEW = "delete the folder {} and make the data again"
_MANIFEST_KEYS = {
    "name": str,
    "num_classes": int,
    "num_train_examples": int,
    "num_test_examples": int,
    "seed": int,
    "recipe": dict,
    "files": dict,
    "class_names": list,
    "client_names": list,
}


def verify_files(directory: Path, manifest: dict[str, Any]) -> None:
    expected: dict[str, dict[str, Any]] = manifest["files"]
    memo_path = directory / VERIFIED
    memo = read_memo(memo_path)
    found: Memo = {}
    for array in array_names(manifest):
        path = directory / f"{array}.npy"
        if path.name not in expected or not path.is_file():
            raise PopulationError(f"{path} is missing; {_MAKE_ANEW.format(directory)}")
        status, wanted = path.stat(), expected[path.name]
        if status.st_size != wanted["bytes"]:
            raise PopulationError(
                f"{path} has {status.st_size} bytes, {MANIFEST} says {wanted['bytes']}; "
                + _MAKE_ANEW.format(directory)
            )
        found[path.name] = [status.st_size, status.st_mtime_ns, wanted["sha256"]]
        if memo.get(path.name) == found[path.name]:
            continue
        sha256 = fingerprint(path)["sha256"]
        if sha256 != wanted["sha256"]:
            raise PopulationError(
                f"{path} has sha256 {sha256}, {MANIFEST} says {wanted['sha256']}; "
                + _MAKE_ANEW.format(directory)
            )
    if found != memo and os.access(directory, os.W_OK):
        write_memo(memo_path, found)


def load_array(directory: Path, array: str, dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
    path = directory / f"{array}.npy"
    try:
        values: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except ValueError as error:
        raise PopulationError(
            f"{path} is not an array file ({error}); {_MAKE_ANEW.format(directory)}"
        ) from None
    if values.dtype != np.dtype(dtype) or values.shape != shape:
        raise PopulationError(
            f"{path} holds {values.dtype} {list(values.shape)}, {MANIFEST} says {dtype} {list(shape)}; "
            + _MAKE_ANEW.format(directory)
        )
    return values


def write_attribution(directory: Path, text: str) -> None:
    """Whose the data is, for people; nothing where nobody is to be named."""
    if text:
        (directory / ATTRIBUTION).write_text(text, encoding="utf-8")


def read_attribution(directory: Path) -> str:
    path = directory / ATTRIBUTION
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def rename_to_new(source: Path, target: Path) -> None:
    try:
        source.rename(target)  # fails when the target is a folder with something in it
    except OSError as error:
        if target.exists():
            raise FileExistsError(f"{target} was finished by another process; open that one") from error
        raise
