"""What travels to a device is found by reading imports: all that is needed, and nothing that needs torch."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from android_harness.bundles.bundle import REPOSITORY, client_modules
from android_harness.bundles.imported_modules import imported_modules

SOURCES = {
    "app/__init__.py": "",
    "app/main.py": "import json\nfrom app import words\nfrom lib.deep.inner import thing\n",
    "app/words.py": "def later():\n    import lib.late\n",
    "app/unused.py": "",
    "lib/__init__.py": "from lib.base import Base\n",
    "lib/base.py": "import numpy\nimport app.main\n",
    "lib/late.py": "",
    "lib/deep/__init__.py": "",
    "lib/deep/inner.py": "thing = 1\n",
    "lib/deep/unused.py": "",
}


def write(folder: Path, sources: dict[str, str]) -> None:
    for name, text in sources.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def test_modules_are_followed_through_packages_functions_and_circles(tmp_path: Path) -> None:
    write(tmp_path, SOURCES)
    found = [path.relative_to(tmp_path).as_posix() for path in imported_modules("app.main", tmp_path)]
    assert found == sorted(name for name in SOURCES if "unused" not in name)


def test_a_relative_import_is_refused_where_it_stands(tmp_path: Path) -> None:
    write(tmp_path, {**SOURCES, "lib/late.py": "import json\nfrom .base import Base\n"})
    with pytest.raises(ValueError, match=r"lib/late.py, line 2: a relative import"):
        imported_modules("app.main", tmp_path)


def test_nothing_that_travels_imports_torch_at_any_time() -> None:
    modules = client_modules()
    names = {path.relative_to(REPOSITORY).as_posix() for path in modules}
    assert {
        "ondevice/client/client.py",
        "ondevice/client/samplers/uniform_negatives.py",
        "ondevice/backends/onnxruntime_module.py",
        "android_harness/bundles/onnxruntime_client/__main__.py",
    } <= names
    for path in modules:
        for node in ast.walk(ast.parse(path.read_text())):
            imported = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            imported += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not {name.split(".")[0] for name in imported} & {"torch", "executorch", "onnx"}, path
