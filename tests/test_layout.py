"""The tree keeps its shape: who may import whom, what stays free of torch, and READMEs that name every module."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("fedss", "export", "ondevice", "server_sim", "android_harness")
MAY_IMPORT = {
    "ondevice": {"ondevice"},
    "export": {"export", "ondevice"},
    "server_sim": {"server_sim", "ondevice"},
    "android_harness": {"android_harness", "ondevice"},
    "fedss": set(PACKAGES),
}


def imported_packages(path: Path) -> set[str]:
    modules: list[str] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            modules += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules.append(node.module)
    return {module.split(".")[0] for module in modules} & set(PACKAGES)


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_import_only_what_they_may(package: str) -> None:
    for path in (ROOT / package).rglob("*.py"):
        assert imported_packages(path) <= MAY_IMPORT[package], path


@pytest.mark.parametrize("package", ["export", "ondevice", "server_sim", "android_harness", "fedss"])
def test_every_module_is_named_in_its_packages_readme(package: str) -> None:
    readme = (ROOT / package / "README.md").read_text()
    for path in (ROOT / package).rglob("*.py"):
        name = path.relative_to(ROOT / package).as_posix()
        if not name.endswith("__init__.py"):
            assert f"`{name}`" in readme, f"{package}/README.md does not say what {name} is for"


def test_what_runs_on_a_device_imports_no_torch() -> None:
    modules = (
        "vocabulary wire safetensors_file portable_random class_sampling local_training client artifact golden_step "
        "padding plain_text backends backends.opening"
    )
    imports = "; ".join(f"import ondevice.{name}" for name in modules.split())
    check = f"import sys; {imports}; assert 'torch' not in sys.modules, 'torch was imported'"
    done = subprocess.run([sys.executable, "-c", check], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
