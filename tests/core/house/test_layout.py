"""The tree keeps its shape: who may import whom, what stays free of torch, and READMEs that name every module."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from android_harness.bundles.bundle import client_modules

ROOT = Path(__file__).parents[3]
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


def test_every_native_source_is_named_in_a_readme() -> None:
    for path in (ROOT / "ondevice/native").rglob("*.cpp"):
        if "client" not in path.parts:  # it has a README of its own
            name = path.relative_to(ROOT / "ondevice").as_posix()
            readme = (ROOT / "ondevice/README.md").read_text()
            assert f"`{name}`" in readme, f"ondevice/README.md does not say what {name} is for"
    for path in (ROOT / "server_sim").rglob("*.cpp"):
        name = path.relative_to(ROOT / "server_sim").as_posix()
        readme = (ROOT / "server_sim/README.md").read_text()
        assert f"`{name}`" in readme, f"server_sim/README.md does not say what {name} is for"


def imported_when_loaded(path: Path) -> set[str]:
    """Top-level packages that a module imports as it is itself imported; imports in functions come later, if ever."""
    names: list[str] = []
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.append(node.module)
    return {name.split(".")[0] for name in names}


def test_only_modules_about_torch_load_it() -> None:
    """Devices have none, and a wrong command line is refused before the seconds that torch takes."""
    modules = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in (ROOT / "ondevice").rglob("*.py")
    }
    loads = {name: imported_when_loaded(path) for name, path in modules.items()}
    about_torch = {name for name in modules if "torch" in loads[name]}
    on_devices = set(client_modules())
    travels = {name for name, path in modules.items() if path in on_devices}
    assert "ondevice.client.client" in travels
    assert not travels & about_torch
    assert "ondevice.model.train_step" in about_torch  # or nothing is told apart
    # The training build of ONNX Runtime, which is installed here, loads torch by itself; devices have the stock one.
    through_runtime = {name for name in modules if "onnxruntime" in loads[name]}
    free = [
        *sorted(modules.keys() - about_torch - through_runtime),
        "export.recipe",
        "fedss.commands.export",
        "fedss.command_line",
    ]
    imports = "; ".join(f"import {name}" for name in free)
    check = f"import sys; {imports}; assert 'torch' not in sys.modules, 'torch was imported'"
    done = subprocess.run([sys.executable, "-c", check], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
