"""The library: light to import, typed, silent, usable in a thread, interruptible; and the commands only a layer over it."""

from __future__ import annotations

import ast
import json
import signal
import subprocess
import sys
import threading
import tomllib
from dataclasses import asdict
from pathlib import Path

import pytest

import fedss
from fedss.api.exported_step import widest_slice

ROOT = Path(__file__).parents[2]
ONE_BY_ONE = {"evaluation.every": 1}
TINY_STEP = fedss.StepSpec("three_convolutions", embedding_dim=8, image_shape=(1, 16, 16))


def test_the_import_is_light() -> None:
    heavy = ("torch", "numpy", "pydantic", "matplotlib", "typer", "rich", "server_sim", "export", "ondevice")
    check = (
        "import sys, time; before = time.process_time(); import fedss; dir(fedss); "
        "seconds = time.process_time() - before; "
        f"print([name for name in {heavy} if name in sys.modules]); print(seconds)"
    )
    seconds = []
    for _ in range(3):  # a busy machine may take long once
        done = subprocess.run(
            [sys.executable, "-c", check], cwd=ROOT, capture_output=True, text=True, check=True
        )
        loaded, taken = done.stdout.splitlines()
        assert loaded == "[]"
        seconds.append(float(taken))
        if seconds[-1] < 0.3:
            return
    pytest.fail(f"import fedss took {seconds} s of CPU time; expected less than 0.3")


def test_every_public_name_is_there_and_typed() -> None:
    tree = ast.parse((ROOT / "fedss/__init__.py").read_text())
    for_types = next(node for node in tree.body if isinstance(node, ast.If))
    typed = [
        alias.name for node in for_types.body if isinstance(node, ast.ImportFrom) for alias in node.names
    ]
    assert sorted(typed) == sorted(fedss.__all__) == dir(fedss)
    for name in fedss.__all__:
        assert getattr(fedss, name).__name__ == name
    package_data = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    assert "py.typed" in package_data["fedss"]
    assert (ROOT / "fedss/py.typed").exists()


def test_a_name_that_is_not_there_is_told_what_is() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'simulat'; it has .*simulate"):
        fedss.simulat  # type: ignore[attr-defined]  # noqa: B018


def test_functions_stay_functions_when_their_modules_are_loaded() -> None:
    """`import fedss.report` of a package of that name would take the place of the function."""
    for name in fedss.__all__:
        assert not (ROOT / "fedss" / name).exists()
        assert not (ROOT / "fedss" / f"{name}.py").exists()


def imported_modules(path: Path) -> set[str]:
    modules = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules.add(node.module)
    return modules


def test_commands_hold_no_federation_and_the_library_no_terminal() -> None:
    commands = sorted((ROOT / "fedss/commands").glob("*.py"))
    assert len(commands) > 10
    for path in commands:
        machinery = [
            name for name in imported_modules(path) if name.split(".")[0] in ("server_sim", "export")
        ]
        assert not machinery, f"{path.name} imports {machinery}; call fedss.api instead"
    library = [*(ROOT / "fedss/api").glob("*.py"), ROOT / "fedss/device_rounds.py"]
    assert len(library) > 8
    for path in [*library, *(ROOT / "fedss/reporting").glob("*.py")]:
        terminal = imported_modules(path) & {"fedss.console", "fedss.locations", "fedss.termination"}
        rich = [name for name in imported_modules(path) if name.split(".")[0] in ("rich", "typer")]
        assert not terminal, path
        assert not rich, path
        names = {node.id for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Name)}
        assert "print" not in names, path


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> fedss.Run:
    return fedss.simulate(
        "glyphs-tiny", rounds=3, out=tmp_path_factory.mktemp("run") / "run", overrides=ONE_BY_ONE
    )


def test_a_run_says_where_it_is_how_it_learnt_and_what_it_cost(run: fedss.Run) -> None:
    assert [done for done, _ in run.curve] == [1, 2, 3]
    assert run.curve[-1][1] == run.summary["top1"]
    assert run.summary == json.loads((run.path / "summary.json").read_text())
    assert (run.experiment.server.rounds, run.experiment.evaluation.every) == (3, 1)
    assert [line.num_updates for line in run.rounds] == [4, 4, 4]
    assert fedss.open_run(run.path) == run


def test_it_is_silent_and_runs_in_a_thread_without_touching_signals(
    run: fedss.Run, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    heard: list[object] = []
    found: list[fedss.Run] = []

    def work() -> None:
        found.append(
            fedss.simulate(
                run.experiment,
                out=tmp_path / "run",
                on_round=heard.append,
                on_run=lambda start: heard.append(start.path),
            )
        )

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found[0].curve == run.curve
    assert heard == [tmp_path / "run", *found[0].rounds]
    assert (tmp_path / "run/state.safetensors").read_bytes() == (run.path / "state.safetensors").read_bytes()
    assert {number: signal.getsignal(number) for number in handlers} == handlers
    printed = capfd.readouterr()
    assert (printed.out, printed.err) == ("", "")


def test_stop_saves_and_resume_ends_in_the_same_bytes(run: fedss.Run, tmp_path: Path) -> None:
    heard: list[fedss.RoundRecord] = []
    out = tmp_path / "run"
    with pytest.raises(fedss.Interrupted):
        fedss.simulate(run.experiment, out=out, on_round=heard.append, stop=lambda: bool(heard))
    assert len(heard) == 1
    with pytest.raises(fedss.ConfigurationError, match="holds a run already"):
        fedss.simulate(run.experiment, out=out)
    assert fedss.simulate(run.experiment, out=out, resume=True, on_round=heard.append).curve == run.curve
    assert [line.round for line in heard] == [0, 1, 2]
    assert (out / "state.safetensors").read_bytes() == (run.path / "state.safetensors").read_bytes()


def test_ctrl_c_ends_it_and_resume_goes_on(run: fedss.Run, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        fedss.simulate(
            run.experiment, out=tmp_path / "run", on_round=lambda _: signal.raise_signal(signal.SIGINT)
        )
    again = fedss.simulate(run.experiment, out=tmp_path / "run", resume=True)
    assert again.curve == run.curve


def test_what_cannot_be_is_refused_in_the_words_of_the_call(run: fedss.Run, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with pytest.raises(fedss.UsageError, match=r"^runtime is 'tflite'; expected one of eager"):
        fedss.simulate("glyphs-tiny", runtime="tflite", out=out)
    with pytest.raises(fedss.UsageError, match=r"^workers is -1; expected 1 or more, or 0 for one per core"):
        fedss.simulate("glyphs-tiny", workers=-1, out=out)
    with pytest.raises(fedss.UsageError, match=r"^engine is 'cloud'; expected one of in-process, workers"):
        fedss.simulate("glyphs-tiny", engine="cloud", out=out)
    with pytest.raises(fedss.UsageError, match=r"^devices is 'host'; expected a list"):
        fedss.simulate("glyphs-tiny", devices="host", out=out)
    with pytest.raises(fedss.UsageError, match=r"^device is 'toaster'; expected host"):
        fedss.simulate("glyphs-tiny", devices=["toaster"], out=out)
    with pytest.raises(fedss.UsageError, match=r"^runtime is 'eager'; devices have a client for"):
        fedss.simulate("glyphs-tiny", devices=["host"], runtime="eager", out=out)
    with pytest.raises(fedss.UsageError, match=r"scheme.name is centralized: there are no clients"):
        fedss.simulate("glyphs-tiny", devices=["host"], overrides=["scheme.name=centralized"], out=out)
    with pytest.raises(fedss.UsageError, match=r"^out is not given"):
        fedss.simulate(run.experiment)
    with pytest.raises(fedss.UsageError, match=r"^overrides is 'seed=1'; expected a list"):
        fedss.simulate("glyphs-tiny", overrides="seed=1", out=out)
    with pytest.raises(fedss.UsageError, match=r"\[table\]; run it with simulate_table"):
        fedss.simulate("glyphs-table1", out=out)
    with pytest.raises(fedss.ConfigurationError, match=r"no \[table\]"):
        fedss.simulate_table("glyphs-tiny", out=out)
    with pytest.raises(fedss.ConfigurationError, match=r"scheme.foo: there is no such field"):
        fedss.simulate("glyphs-tiny", overrides={"scheme.foo": 1}, out=out)
    with pytest.raises(fedss.UsageError, match=r"^out is page\.pdf; expected a name that ends in \.html"):
        fedss.report(run.path, out="page.pdf")
    with pytest.raises(fedss.UsageError, match=r"^path is sheet.doc; expected a name that ends in"):
        fedss.draw_contact_sheet(fedss.open_population("glyphs-tiny"), "sheet.doc")
    with pytest.raises(fedss.UsageError, match="architecture is 'resnet'; expected one of"):
        fedss.export("resnet", out=tmp_path / "artifact")
    assert list(tmp_path.iterdir()) == []


def test_a_table_is_run_once_and_read_again(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    rows = '[{label="FedSS", num_negatives=[2]}, {label="Central", override={"scheme.name"="centralized"}}]'
    started: list[str] = []

    def simulate_table(rounds: int = 1, *more: str) -> fedss.Table:
        return fedss.simulate_table(
            "glyphs-tiny",
            rounds=rounds,
            overrides=[f"table={{seeds=[5], rows={rows}}}", *more],
            out=tmp_path / "table",
            resume=True,
            on_run=lambda start: started.append(f"{start.number} of {start.total}: {start.name}"),
        )

    table = simulate_table()
    assert started == ["1 of 2: fedss-2/seed-5", "2 of 2: central/seed-5"]
    assert [(cell.label, cell.num_negatives, cell.num_seeds) for cell in table.cells] == [
        ("FedSS", 2, 1),
        ("Central", None, 1),
    ]
    assert [run.experiment.scheme.name for run in table.runs] == ["fedss", "centralized"]
    written = json.loads((tmp_path / "table/table.json").read_text())
    assert written["rows"] == [asdict(cell) for cell in table.cells]
    assert simulate_table() == table
    assert len(started) == 2
    with pytest.raises(fedss.ConfigurationError, match=r"other settings \(client.learning_rate\)"):
        simulate_table(1, "client.learning_rate=0.5")
    longer = simulate_table(2)
    assert len(started) == 4
    assert [len(run.rounds) for run in longer.runs] == [2, 2]
    printed = capfd.readouterr()
    assert (printed.out, printed.err) == ("", "")


def test_a_table_that_devices_cannot_run_whole_is_refused_before_its_first_run(tmp_path: Path) -> None:
    with pytest.raises(fedss.UsageError, match=r"scheme\.name is centralized: there are no clients"):
        fedss.simulate_table("glyphs-table1", devices=["host"], out=tmp_path / "table")
    assert not (tmp_path / "table").exists()


@pytest.mark.parametrize(
    ("changes", "widest"),
    [
        ({"scheme.num_negatives": 7}, lambda held: held + 7),
        ({"scheme.num_negatives": 1000}, lambda _: 60),
        ({"scheme.name": "negatives_only", "scheme.num_negatives": 7}, lambda held: held + 7),
        ({"scheme.name": "positives_only"}, lambda held: held),
        ({"scheme.name": "full_softmax"}, lambda _: 60),
        ({"scheme.name": "centralized"}, lambda _: 60),
    ],
)
def test_the_exported_step_is_as_wide_as_the_widest_client_of_the_scheme(
    changes: dict[str, object], widest: object
) -> None:
    population = fedss.open_population("glyphs-tiny")
    held = fedss.describe_partition(population).classes_per_client.max
    assert 2 < held < 53
    experiment = fedss.load_experiment("glyphs-tiny").overridden(changes)
    assert callable(widest)
    assert widest_slice(experiment, population) == widest(held)


@pytest.mark.slow
def test_a_step_is_exported_inspected_measured_and_reported_in_silence(
    run: fedss.Run, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    notes: list[str] = []
    artifact = fedss.export(
        TINY_STEP, out=tmp_path / "artifact", runtimes=["onnxruntime"], max_width=32, on_note=notes.append
    )
    assert any("checking onnxruntime" in note for note in notes)
    assert fedss.open_artifact(tmp_path / "artifact") == artifact
    found = fedss.inspect(artifact, num_classes=[1000], width=20, check=True)
    (head,) = found.heads
    assert (head.num_classes, head.parameters, head.width) == (1000, 8000, 20)
    assert head.sampled.total < head.full.total
    steps: list[tuple[int, int]] = []
    rows = fedss.bench(
        artifact,
        runtimes=["onnxruntime"],
        against=["eager"],
        batches=[6],
        widths=[20],
        warm_up=1,
        steps=2,
        out=tmp_path / "bench",
        on_step=lambda done, total: steps.append((done, total)),
    )
    assert [row.runtime for row in rows][:2] == ["eager", "onnxruntime"]
    assert (rows[1].batch, rows[1].micro_batch, rows[1].bytes_down) == (6, 4, head.sampled.model_slice)
    assert steps == [(1, 3), (2, 3), (3, 3)]
    page = fedss.report([run.path, tmp_path / "bench"], out=tmp_path / "page.html")
    assert "onnxruntime" in page.read_text()
    printed = capfd.readouterr()
    assert (printed.out, printed.err) == ("", "")
