"""The kernels in every instruction set that this machine has."""

from __future__ import annotations

import platform

import pytest
from helpers.native_kernels import Kernels

INSTRUCTION_SETS = ("baseline", "avx2") if platform.machine() == "x86_64" else ("baseline",)


@pytest.fixture(scope="module", params=INSTRUCTION_SETS)
def kernels(request: pytest.FixtureRequest) -> Kernels:
    try:
        return Kernels(request.param)
    except LookupError as missing:
        pytest.skip(str(missing))
