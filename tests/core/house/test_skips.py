"""What a machine lacks skips a test, and fails it in CI."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SKIPPING = """
import pytest

def test_needs_a_program():
    pytest.skip("needs: apt-get install adb")

@pytest.fixture
def phone():
    pytest.skip("needs: apt-get install qemu-user")

def test_needs_a_phone(phone):
    pass

@pytest.mark.skipif(True, reason="needs root")
def test_needs_root():
    pass

def test_needs_an_instruction():
    pytest.skip("this processor has no avx512")

def test_needs_nothing():
    pass
"""


@pytest.mark.parametrize(
    ("environment", "counts"),
    [
        ({}, {"passed": 1, "skipped": 4}),
        ({"CI": "true"}, {"passed": 1, "skipped": 1, "failed": 1, "errors": 2}),
    ],
)
def test_ci_fails_what_others_skip(
    tmp_path: Path, environment: dict[str, str], counts: dict[str, int]
) -> None:
    (tmp_path / "test_skipping.py").write_text(SKIPPING)
    outside = {name: value for name, value in os.environ.items() if name != "CI"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "helpers.skips", "-p", "no:cacheprovider", "test_skipping.py"],
        cwd=tmp_path,
        env={**outside, "PYTHONPATH": str(Path(__file__).parents[2]), **environment},
        capture_output=True,
        text=True,
    )
    last = done.stdout.splitlines()[-1]
    parts = [part.split() for part in last.strip("= ").split(" in ")[0].split(", ")]
    assert {kind: int(number) for number, kind, *_ in parts} == counts, done.stdout
    if environment:
        assert "needs: apt-get install adb" in done.stdout
