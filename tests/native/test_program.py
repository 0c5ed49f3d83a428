"""An ExecuTorch program through the C interface: every type and rank that a step may have."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ondevice.native.runtime.program import Program, ProgramError

pytestmark = pytest.mark.slow  # compiles the kernels

SHAPE = (2, 1, 3, 1, 2, 4)


class Sum(nn.Module):
    """Bytes, whole numbers and floats in; floats of six dimensions out."""

    def forward(self, pixels: Tensor, tokens: Tensor, numbers: Tensor) -> Tensor:
        return pixels.to(torch.float32) * numbers + tokens.to(torch.float32)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Program:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # ExecuTorch marks its own modules as experimental on import
        from executorch.exir import ExecutorchBackendConfig, to_edge
        from executorch.exir.passes import MemoryPlanningPass

        example = (
            torch.zeros(SHAPE, dtype=torch.uint8),
            torch.zeros(SHAPE, dtype=torch.int64),
            torch.zeros(SHAPE),
        )
        exported = torch.export.export(Sum(), example, strict=False)
        path = tmp_path_factory.mktemp("program") / "sum.pte"
        # Inputs and outputs are the caller's.
        planning = MemoryPlanningPass(alloc_graph_input=False, alloc_graph_output=False)
        config = ExecutorchBackendConfig(memory_planning_pass=planning)
        path.write_bytes(to_edge(exported).to_executorch(config).buffer)
    return Program(path)


def test_bytes_whole_numbers_and_floats_of_six_dimensions_are_read_where_they_lie(program: Program) -> None:
    source = np.random.default_rng(0)
    pixels = source.integers(0, 256, SHAPE, np.uint8)
    tokens = source.integers(-1000, 1000, SHAPE)
    numbers = source.standard_normal(SHAPE, np.float32)
    out = np.empty(SHAPE, np.float32)
    program.run([pixels, tokens, numbers], [out])
    np.testing.assert_allclose(out, pixels * numbers + tokens, rtol=1e-6, atol=1e-4)


@pytest.mark.parametrize(
    "array",
    [
        np.zeros(SHAPE, np.float64),
        np.zeros(SHAPE, np.int32),
        np.zeros((*SHAPE, 1), np.uint8),
        np.zeros(SHAPE, np.uint8).swapaxes(0, 2),
    ],
    ids=["float64", "int32", "seven dimensions", "not contiguous"],
)
def test_what_the_runtime_would_misread_is_refused(array: np.ndarray, program: Program) -> None:
    with pytest.raises(
        ValueError, match="expected contiguous float32, int64 or uint8 of at most 6 dimensions"
    ):
        program.run([array], [np.empty(SHAPE, np.float32)])


_AFTER_THE_RUNTIMES_OWN_MODULE = """
import sys
from pathlib import Path

from ondevice.native.runtime.program import Program, ProgramError, set_threads

set_threads(1)  # loads our library first
import executorch.extension.pybindings._C

try:
    Program(Path(sys.argv[1]))
except ProgramError as error:
    print(error)
"""


def test_the_reason_for_a_refusal_is_heard_though_the_runtimes_python_module_listens_too(
    tmp_path: Path,
) -> None:
    path = tmp_path / "nonsense.pte"
    path.write_bytes(b"x" * 1000)
    with pytest.raises(ProgramError, match="identifier 'xxxx'"):
        Program(path)
    command = [sys.executable, "-c", _AFTER_THE_RUNTIMES_OWN_MODULE, str(path)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "identifier 'xxxx'" in printed
