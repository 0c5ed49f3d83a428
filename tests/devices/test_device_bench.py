"""What a step costs on a device: what the client says becomes rows, and rows say nothing that the device cannot know."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from helpers.artifacts.tiny_artifact import make_tiny_artifact
from helpers.data.tiny_labels import FEDMLH
from helpers.data.tiny_texts import TIED
from helpers.federations.conversation_case import copy_with_wrong_golden_step, export_small
from helpers.native.arm_programs import CACHE, require_programs
from typer.testing import CliRunner, Result

import fedss.commands.bench
from android_harness.devices.device import DeviceError
from android_harness.devices.qemu import QEMU_PROGRAMS
from android_harness.emulator.machine import EMULATOR_PROGRAMS
from android_harness.measuring.client_bench import parse_bench, per_step
from android_harness.measuring.memory_limit import largest_survivor
from android_harness.measuring.power_state import PowerState, energy_millijoules, parse_power_state
from android_harness.measuring.records import by_device, read_measurements
from export.pipeline import export_artifact
from export.recipe import ExportRecipe
from fedss.console import CheckFailed, UsageError
from ondevice.contract.artifact import Artifact
from ondevice.contract.vocabulary import StepSpec

CLIENT_LINES = [
    {"event": "ready", "load_ms": 12.0, "swap_ms": 3.0},
    {
        "event": "step",
        "warmup": True,
        "wall_ms": 90.0,
        "cpu_ms": 80.0,
        "loss": 9.0,
        "peak_footprint_bytes": 1,
    },
    {
        "event": "step",
        "warmup": False,
        "wall_ms": 11.0,
        "cpu_ms": 10.0,
        "loss": 5.0,
        "peak_footprint_bytes": 2,
    },
    {
        "event": "step",
        "warmup": False,
        "wall_ms": 13.0,
        "cpu_ms": 12.0,
        "loss": 5.0,
        "peak_footprint_bytes": 3,
    },
    {"event": "done", "peak_footprint_bytes": 4},
]
PHONE = """khz=1800000
khz=2850000
khz=
zone=41200
battery.status=3
battery.voltage=4000
battery.temperature=287
battery.Charge counter=3000000
"""


def run_bench(*arguments: str) -> Result:
    app = typer.Typer()
    app.command()(fedss.commands.bench.command)
    return CliRunner().invoke(app, [*arguments, "--cache", str(CACHE)])


def answer_of(result: Result) -> dict[str, Any]:
    assert result.exception is None, result.output
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer


def test_warm_up_is_not_counted_and_the_peak_is_the_last() -> None:
    report = parse_bench("\n".join(map(json.dumps, CLIENT_LINES)))
    assert report.cpu_ms == (10.0, 12.0)
    assert report.wall_ms == (11.0, 13.0)
    assert (report.load_ms, report.swap_ms, report.peak_footprint_bytes, report.loss) == (12.0, 3.0, 4, 5.0)


@pytest.mark.parametrize("said", ["", "not json", '{"event": "ready"}\n{"event": "done"}'])
def test_a_client_that_says_something_else_is_quoted(said: str) -> None:
    with pytest.raises(DeviceError, match="not understood"):
        parse_bench(said)


def test_a_steps_instructions_are_the_difference_between_two_runs() -> None:
    """Loading costs 1,000 and a step 7, whatever the counts."""
    assert per_step([(2, 1014), (5, 1035)]) == 7


def test_a_phone_tells_its_temperature_clock_and_charge() -> None:
    state = parse_power_state(PHONE)
    assert state == PowerState(28.7, 2850.0, 3_000_000, 4000)
    assert parse_power_state("khz=\nzone=41200\n") == PowerState(temperature_celsius=41.2)


def test_energy_is_what_the_battery_lost_and_unknown_while_it_is_charged() -> None:
    before = parse_power_state(PHONE)
    after = parse_power_state(PHONE.replace("3000000", "2999000"))
    assert energy_millijoules(before, after) == pytest.approx(14_400)  # 1,000 µAh at 4 V
    assert energy_millijoules(before, before) is None
    assert energy_millijoules(before, parse_power_state(PHONE.replace("status=3", "status=2"))) is None


@pytest.mark.parametrize("limit", [1, 2, 5, 17, 31])
@pytest.mark.parametrize(
    "available_bytes", [60, 150, 400, 10_000]
)  # often more, or less, than what there really is
def test_the_search_ends_where_one_lives_and_the_next_is_killed(limit: int, available_bytes: int) -> None:
    tried: list[int] = []

    def attempt(micro_batch: int) -> int | None:
        assert micro_batch not in tried
        tried.append(micro_batch)
        return 40 + 10 * micro_batch if micro_batch <= limit else None

    assert largest_survivor(attempt, available_bytes, largest=32) == (limit, limit + 1)
    assert len(tried) <= 10


def test_the_search_says_when_nothing_lives_and_when_nothing_is_killed() -> None:
    assert largest_survivor(lambda _: None, 100, largest=32) == (0, 1)
    assert largest_survivor(lambda micro_batch: micro_batch, 10_000, largest=32) == (32, None)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--device", "qemu", "--widths", "9"], "on qemu, .* runs with: nothing"),
        (["--device", "qemu", "--against", "eager"], "eager torch runs on the host alone"),
        (["--memory", "256"], "--memory 256 is for an emulator"),
        (["--find-max-batch", "--device", "host"], "--find-max-batch is for an emulator"),
    ],
)
def test_a_measurement_that_cannot_be_is_refused_before_anything_is_booted(
    arguments: list[str], message: str, tmp_path: Path
) -> None:
    artifact = make_tiny_artifact(tmp_path / "artifact")
    result = run_bench(str(artifact.directory), *arguments, "--out", str(tmp_path / "bench"))
    assert isinstance(result.exception, UsageError)
    with pytest.raises(UsageError, match=message):
        raise result.exception
    assert not (tmp_path / "bench").exists()


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return export_small(tmp_path_factory.mktemp("bench") / "artifact", "executorch", "onnxruntime")


SMALL = ["--batch", "6", "--widths", "9", "--warm-up", "1", "--steps", "2", "--json"]


@pytest.mark.slow
def test_qemu_counts_instructions_of_both_clients_and_says_nothing_of_time_and_memory(
    artifact: Artifact, tmp_path: Path
) -> None:
    require_programs(*QEMU_PROGRAMS, "aarch64-linux-gnu-g++")
    answer = answer_of(run_bench(str(artifact.directory), "--device", "qemu", *SMALL, "--out", str(tmp_path)))
    assert [row["runtime"] for row in answer["rows"]] == ["executorch", "onnxruntime"]
    for row in answer["rows"]:
        assert row["emulated"]
        assert row["device"]["name"] == "qemu"
        assert 1e5 < row["instructions_per_step"] < 1e8
        unknown = ("cpu_ms_p50", "cpu_ms_p90", "wall_ms_p50", "wall_ms_p90", "load_ms", "swap_ms", "peak_mb")
        assert [row[name] for name in unknown] == [None] * len(unknown)
    (measured,) = by_device(read_measurements(tmp_path / "results.jsonl"))
    assert measured.emulated
    assert measured.device.startswith("qemu (")


@pytest.mark.slow
def test_the_host_measures_the_client_that_devices_get_beside_its_python_contender(
    artifact: Artifact, tmp_path: Path
) -> None:
    options = ["--runtime", "executorch", "--against", "none"]
    answer = answer_of(run_bench(str(artifact.directory), *options, *SMALL, "--out", str(tmp_path)))
    python, client = answer["rows"]
    assert (python["runtime"], client["runtime"]) == ("executorch", "executorch-client")
    assert 1 < client["peak_mb"] < python["peak_mb"]
    assert 0 < client["cpu_ms_p50"] <= client["cpu_ms_p90"]
    assert client["instructions_per_step"] is None
    assert not client["emulated"]


@pytest.mark.slow
@pytest.mark.parametrize(("spec", "width"), [(FEDMLH, 0), (TIED, 20)], ids=["hashed labels", "words"])
def test_both_heads_of_hashing_are_measured_in_every_client(
    spec: StepSpec, width: int, tmp_path: Path
) -> None:
    require_programs(*QEMU_PROGRAMS, "aarch64-linux-gnu-g++")
    artifact = export_small(tmp_path / "artifact", "executorch", "onnxruntime", spec=spec)
    options = ["--batch", "6", "--warm-up", "1", "--steps", "2", "--json", "--out", str(tmp_path / "bench")]
    options += ["--widths", str(width)] if width else []
    on_host = answer_of(run_bench(str(artifact.directory), "--against", "none", *options))["rows"]
    on_qemu = answer_of(run_bench(str(artifact.directory), "--device", "qemu", *options))["rows"]
    both = ["executorch", "onnxruntime"]
    assert [row["runtime"] for row in on_host] == [*both, *(f"{runtime}-client" for runtime in both)]
    assert [row["runtime"] for row in on_qemu] == both
    assert {row["width"] for row in (*on_host, *on_qemu)} == {width}
    assert all(row["peak_mb"] > 1 for row in on_host)
    assert all(row["instructions_per_step"] > 1e4 for row in on_qemu)


@pytest.mark.slow
def test_a_client_that_misses_the_golden_step_is_not_measured(artifact: Artifact, tmp_path: Path) -> None:
    wrong = copy_with_wrong_golden_step(artifact, tmp_path / "artifact")
    options = ["--runtime", "executorch", "--against", "none"]
    result = run_bench(str(wrong.directory), *options, *SMALL, "--out", str(tmp_path / "bench"))
    assert isinstance(result.exception, CheckFailed)
    assert "executorch is not measured: host: check exited with code 5" in str(result.exception)


@pytest.mark.slow
def test_an_emulator_finds_where_memory_ends_by_a_real_kill(tmp_path: Path) -> None:
    """Rows of the survivors have memory and no time; the micro-batch after the largest of them was killed."""
    require_programs(*EMULATOR_PROGRAMS)
    spec = StepSpec("three_convolutions", embedding_dim=8, image_shape=(1, 96, 96))
    recipe = ExportRecipe(spec, ("executorch",), micro_batch=1, max_width=16)
    artifact = export_artifact(recipe, tmp_path / "artifact")
    options = [
        "--find-max-batch",
        "--memory",
        "84",
        "--widths",
        "9",
        "--json",
        "--out",
        str(tmp_path / "bench"),
    ]
    answer = answer_of(run_bench(str(artifact.directory), *options))
    (limit,) = answer["memory_limits"]
    lived = max(row["micro_batch"] for row in answer["rows"])
    assert limit == {
        "runtime": "executorch",
        "memory_mb": 84,
        "max_micro_batch": lived,
        "killed_at": lived + 1,
    }
    for row in answer["rows"]:
        assert row["emulated"]
        assert row["device"]["name"] == "emulator"
        assert 1 < row["peak_mb"] < 84
        assert row["wall_ms_p50"] is None
