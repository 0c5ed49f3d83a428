"""Which versions of the tools made an artifact or a measurement."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

TOOLS = (
    "torch",
    "executorch",
    "onnx",
    "onnxruntime",
    "onnxruntime-training-cpu",
    "numpy",
    "timm",
    "torchvision",
)


def installed_versions() -> dict[str, str]:
    """Those of the tools that are installed here; none of them is imported."""
    found = {}
    for package in TOOLS:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue  # what is not installed cannot have had a part
    return found
