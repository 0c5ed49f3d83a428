"""The icon sets of the npm package @iconify/json: what each designer drew, by name, under which licence.

A set is a JSON file of the tarball: a prefix, the author, the licence, and SVG bodies by icon name.
"""

from __future__ import annotations

import json
import re
import tarfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ondevice.tools.registries import NpmPackage, RegistryError

PACKAGE = NpmPackage(
    "@iconify/json", "2.2.535", "1a545f86fa224d6531d8fb101dcbe83aac2b28689a21cbed6fc68318a5af4d91"
)
_FOLDER = "package/json/"
_DEFAULT_SIZE = 16.0


@dataclass(frozen=True)
class IconSet:
    prefix: str
    title: str
    author: str
    author_url: str
    licence: str
    """By its SPDX identifier; empty where the set has none."""
    bodies: Mapping[str, str]
    """Icon name -> its SVG elements"""
    boxes: Mapping[str, tuple[float, float, float, float]]
    """Icon name -> left, top, width and height of its drawing"""

    @property
    def family(self) -> str:
        """Sets of one family copy each other: fa-solid, fa6-solid and fa7-brands are all of fa."""
        first = self.prefix.split("-")[0]
        return first.rstrip("0123456789") or first

    @property
    def may_be_used(self) -> bool:
        """Whether the licence is told, and lets anybody use and change the drawings."""
        return bool(self.licence) and not re.search(r"-(NC|ND)\b", self.licence)


def read_icon_sets(tarball: Path) -> list[IconSet]:
    """All sets, by prefix."""
    with tarfile.open(tarball) as archive:
        members = [
            member
            for member in archive
            if member.name.startswith(_FOLDER) and member.name.endswith(".json") and member.isfile()
        ]
        if not members:
            raise RegistryError(
                f"{tarball} has no icon sets under {_FOLDER}; expected those of {PACKAGE.label}"
            )
        files = [archive.extractfile(member) for member in members]
        sets = [_icon_set(json.load(file)) for file in files if file is not None]
    return sorted(sets, key=lambda icon_set: icon_set.prefix)


def _icon_set(document: dict[str, Any]) -> IconSet:
    info = document.get("info", {})
    author, licence = info.get("author", {}), info.get("license", {})

    def box(icon: dict[str, Any]) -> tuple[float, float, float, float]:
        left, top = (float(icon.get(key, document.get(key, 0))) for key in ("left", "top"))
        width, height = (
            float(icon.get(key, document.get(key, _DEFAULT_SIZE))) for key in ("width", "height")
        )
        return left, top, width, height

    icons = document["icons"]
    return IconSet(
        prefix=document["prefix"],
        title=info.get("name", document["prefix"]),
        author=author.get("name", ""),
        author_url=author.get("url", ""),
        licence=licence.get("spdx", ""),
        bodies={name: icon["body"] for name, icon in icons.items()},
        boxes={name: box(icon) for name, icon in icons.items()},
    )


def attribution(sets: Iterable[IconSet], num_images: Mapping[str, int]) -> str:
    """Who drew the images of a population, how many, under which licence; sets without images are left out."""
    lines = [
        f"The images are icons of the {PACKAGE.label}, rendered in grey; nothing else was changed.",
        "Each set keeps its licence:",
        "",
        "| set | images | drawn by | licence |",
        "|---|---|---|---|",
    ]
    for icon_set in sets:
        if count := num_images.get(icon_set.prefix):
            drawn_by = (
                f"{icon_set.author} ({icon_set.author_url})" if icon_set.author_url else icon_set.author
            )
            lines.append(
                f"| {icon_set.title} (`{icon_set.prefix}`) | {count} | {drawn_by} | {icon_set.licence} |"
            )
    return "\n".join(lines) + "\n"
