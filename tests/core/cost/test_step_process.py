"""Steps in a process of their own: what they cost, and what is said when one fails."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.artifacts.tiny_artifact import make_tiny_artifact

from ondevice.contract.artifact import (
    Artifact,
)
from ondevice.tools.step_process import StepJob, StepProcess, StepProcessError


@pytest.fixture
def artifact(tmp_path: Path) -> Artifact:
    return make_tiny_artifact(tmp_path / "artifact")


@pytest.mark.slow
def test_a_step_process_takes_whole_batches_and_reports_what_a_step_costs(artifact: Artifact) -> None:
    job = StepJob(str(artifact.directory), "eager", batch=6, width=5)
    with StepProcess(job) as process:
        first = process.step()
        assert first.cpu_ms > 0
        assert first.wall_ms > 0
        assert process.swap_ms() > 0
        assert process.step().loss == first.loss  # the same weights, read back from disk
        assert process.peak_bytes() > 50 << 20  # torch alone is more than that
        assert process.load_ms > 0


@pytest.mark.slow
def test_both_memory_formats_of_eager_give_the_same_loss(artifact: Artifact) -> None:
    losses = []
    for runtime in ("eager", "eager-channels-last"):
        with StepProcess(StepJob(str(artifact.directory), runtime, batch=6, width=5)) as process:
            losses.append(process.step().loss)
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_a_step_process_that_fails_says_why(artifact: Artifact) -> None:
    with pytest.raises(StepProcessError, match=r"ended with 1: .*runtime is 'onnxruntime'"):
        StepProcess(StepJob(str(artifact.directory), "onnxruntime", batch=2, width=5))


def test_a_step_process_that_is_killed_says_so(artifact: Artifact) -> None:
    with StepProcess(StepJob(str(artifact.directory), "eager", batch=2, width=5)) as process:
        process._process.kill()
        with pytest.raises(StepProcessError, match=r"eager at batch 2 and width 5 was killed by signal 9"):
            process.step()
