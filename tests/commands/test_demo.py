"""`fedss demo` replaces an earlier demo, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedss.api.errors import UsageError
from fedss.commands.demo import _make_room


def test_a_folder_that_holds_more_than_a_demo_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "fedss").mkdir()
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(UsageError, match=r"thesis\.tex"):
        _make_room(tmp_path)
    assert (tmp_path / "thesis.tex").read_text() == "years of work"
    assert (tmp_path / "fedss").is_dir()


def test_an_earlier_demo_is_replaced_and_a_new_folder_needs_no_room(tmp_path: Path) -> None:
    out = tmp_path / "demo"
    _make_room(out)
    (out / "bench").mkdir(parents=True)
    (out / "report-learning.png").touch()
    _make_room(out)
    assert not out.exists()
