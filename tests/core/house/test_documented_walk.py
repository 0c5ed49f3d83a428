"""The walk of one class id through the house is as long as docs/architecture.md says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("heading", ["In this process", "With a device"])
def test_the_walk_of_a_class_id_is_counted_as_it_is_listed(heading: str) -> None:
    _, _, text = (ROOT / "docs" / "architecture.md").read_text().partition(f"\n### {heading}\n")
    text, _, _ = text.partition("\n### ")
    files = re.findall(r"^\d+\. `([^`]+)`", text, re.MULTILINE)
    assert all((ROOT / file).is_file() for file in files), files
    back = len(files) - len(set(files))
    assert f"\n{len(set(files))} files in {len(files) - 1} jumps, {back} of them back to a file" in text
