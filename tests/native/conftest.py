"""The kernels in every instruction set, as they are shipped and with the sanitizers; ARM64's under an emulator."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from helpers.native.kernel_programs import KernelBuild, kernel_builds
from helpers.native.kernels import Kernels


@pytest.fixture(
    scope="session", params=kernel_builds(), ids=lambda build: f"{build.name}-{build.instruction_set}"
)
def kernels(request: pytest.FixtureRequest) -> Iterator[Kernels]:
    build: KernelBuild = request.param
    kernels = Kernels(build.command())
    yield kernels
    kernels.close()
