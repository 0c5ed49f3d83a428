"""A device that answers nonsense costs the client that trains on it, with a reason, and never the run.

The client is a shell script, so that nothing has to be compiled; devices are this host, as it is or behind an `adb` that
runs everything here and answers one question wrongly.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from android_harness.bundles.bundle import Bundle
from android_harness.devices.adb import AdbDevice
from android_harness.devices.adb_server import AdbServer
from android_harness.devices.command_frame import BadFrame, CommandFrame
from android_harness.devices.device import Device, DeviceDescription, DeviceError, RunResult
from android_harness.devices.host import HostDevice
from android_harness.rounds.device_link import DeviceLink
from android_harness.rounds.training_device import (
    MOST_QUESTIONS,
    ClientData,
    TrainingDevice,
    TrainingKit,
    is_update,
)
from ondevice.contract.choice import Choice
from ondevice.contract.link import ClientFailure
from ondevice.contract.vocabulary import COLUMNS, IMAGES, ExampleSet, RoundPlan
from ondevice.contract.wire import MAX_MESSAGE_BYTES

PLAN = RoundPlan(0, {COLUMNS: 10}, Choice("positives"), Choice("uniform"))
LIAR = 1
"""The client whose device lies while it trains."""

CLIENT = """
verb=$1
while [ $# -gt 0 ]; do
  case "$1" in
    --out) out=$2;; --answers) answers=$2;; --seed-file) client=$(basename $(dirname $2));;
  esac
  shift
done
[ "$verb" = converse ] || exit 0
if [ -e "$answers/${LAST_ANSWER:-0}" ]; then event=trained; else event=asks; fi
if [ "$client" = 1 ] && [ "$event" = "$LYING_EVENT" ]; then
  eval "$LIE"
else
  printf "$event: $client" > "$out"
fi
echo "{\\"event\\": \\"$event\\"}"
"""

ADB = """#!/bin/sh
while :; do case "$1" in -P|-H|-s) shift 2;; *) break;; esac; done
case "$1" in
  get-state) echo device;;
  push|pull) cp -r "$2" "$3";;
  shell)
    shift; [ "$1" = -T ] && shift
    if [ -e "$LIES/now" ] && printf '%s' "$1" | grep -q "$(cat "$LIES/about")"; then
      rm "$LIES/now"
      exec sh "$LIES/script" "$1"
    fi
    exec sh -c "$(printf '%s' "$1" | sed s,/data/local/tmp,/tmp,g)";;
esac
"""


class ShellBundle(Bundle):
    """A bundle whose program needs no loader of its own."""

    def command(self, remote: str) -> list[str]:
        return ["sh", f"{remote}/client.sh"]


def client_data(client_id: int) -> ClientData:
    images = np.zeros((2, 1, 8, 8), np.uint8)
    return ClientData(ExampleSet({IMAGES: images}, np.array([0, 1])), private_seed=client_id)


@pytest.fixture
def kit(tmp_path: Path) -> TrainingKit:
    folder, artifact = tmp_path / "bundle", tmp_path / "artifact"
    folder.mkdir()
    artifact.mkdir()
    (folder / "client.sh").write_text(CLIENT)
    (artifact / "manifest.json").write_text("{}")
    bundle = ShellBundle(folder, "x86_64", "executorch", (), {}, {})
    return TrainingKit(artifact, lambda _: bundle, client_data, timeout=60.0)


def one_round(
    open_device: Callable[[], Device], kit: TrainingKit, about_to_lie: Callable[[], object] = lambda: None
) -> list[str]:
    """What became of clients 0, 1 and 2."""

    def answer(client_id: int, question: bytes) -> bytes:
        assert question == b"asks: %d" % client_id
        if client_id == LIAR:
            about_to_lie()
        return b"slice"

    device = TrainingDevice("phone", open_device, kit)
    with closing(DeviceLink([device], retries=0, patience=5.0)) as link:
        found = list(link.exchange(PLAN, [0, LIAR, 2], answer))
    assert [client_id for client_id, _ in found] == [0, LIAR, 2]
    return [str(outcome) if isinstance(outcome, ClientFailure) else outcome.decode() for _, outcome in found]


def assert_only_the_liar_is_dropped(found: list[str], complaint: str) -> None:
    assert (found[0], found[2]) == ("trained: 0", "trained: 2")
    assert complaint in found[1]
    assert len(found[1]) < 3000


class LyingHost(HostDevice):
    """This machine; its client says something else for client 1."""

    def __init__(self, event: str, lie: str) -> None:
        super().__init__()
        self._lie = {"LYING_EVENT": event, "LIE": lie}

    def run(
        self, argv: Sequence[str], timeout: float, env: Mapping[str, str] | None = None, stdin: bytes = b""
    ) -> RunResult:
        return super().run(argv, timeout, {**(env or {}), **self._lie}, stdin)


@pytest.mark.parametrize(
    ("event", "lie", "complaint"),
    [
        ("asks", 'mkdir "$out"', "not a file"),
        ("trained", 'mkdir "$out"', "not a file"),
        ("trained", 'mkfifo "$out"', "named pipe"),
        ("trained", 'truncate -s 3G "$out"', f"has {3 << 30} bytes; expected at most {MAX_MESSAGE_BYTES}"),
        ("trained", 'ln -s nowhere "$out"', "no file"),
        ("trained", "true", "no file"),  # its question of before is not taken for an update
        ("asks", 'printf x > "$out"; exit', "converse printed something"),
        ("trained", 'printf x > "$out"; echo done; exit', "converse printed something"),
        ("trained", "cat /dev/zero", "printed more than 16 MB on stdout"),
        ("trained", "cat /dev/zero >&2", "printed more than 16 MB on stderr"),
    ],
)
def test_a_message_that_is_none_costs_its_client(
    kit: TrainingKit, event: str, lie: str, complaint: str
) -> None:
    began = time.monotonic()
    assert_only_the_liar_is_dropped(one_round(partial(LyingHost, event, lie), kit), complaint)
    assert time.monotonic() - began < 30  # of 60 that a program may take


class Curious(HostDevice):
    """This machine; its client asks three times, and sends the last answer as its update."""

    def run(
        self, argv: Sequence[str], timeout: float, env: Mapping[str, str] | None = None, stdin: bytes = b""
    ) -> RunResult:
        curious = {"LAST_ANSWER": "2", "LYING_EVENT": "trained", "LIE": 'cat "$answers"/* > "$out"'}
        return super().run(argv, timeout, {**(env or {}), **curious}, stdin)


def test_a_client_may_ask_as_often_as_its_scheme_needs(kit: TrainingKit) -> None:
    answers = iter((b"once ", b"twice ", b"thrice"))
    with closing(DeviceLink([TrainingDevice("phone", Curious, kit)])) as link:
        found = list(link.exchange(PLAN, [LIAR], lambda _, question: next(answers) if question else b""))
    assert found == [(LIAR, b"once twice thrice")]


def test_a_client_that_asks_for_ever_is_dropped(kit: TrainingKit) -> None:
    asked: list[None] = []
    again = 'printf "asks: 1" > "$out"; event=asks'
    found = one_round(partial(LyingHost, "trained", again), kit, about_to_lie=lambda: asked.append(None))
    assert_only_the_liar_is_dropped(found, f"has asked {MOST_QUESTIONS} times and asks again")
    assert len(asked) == MOST_QUESTIONS


@pytest.mark.parametrize(
    "printed",
    [
        "",
        "asks",
        "[]",
        "7",
        '"asks"',
        "{}",
        '{"event": "lunch"}',
        '{"event": ["asks"]}',
        "[" * 100_000,
        "1" * 5000,
    ],
)
def test_what_a_client_prints_is_one_of_two_events_or_quoted_briefly(printed: str) -> None:
    assert not is_update('{"event": "asks"}\n')
    assert is_update('a remark\n{"event": "trained", "wall_ms": 1}\n')
    with pytest.raises(DeviceError, match="expected the event asks or trained") as failure:
        is_update(printed)
    assert len(str(failure.value)) < 1000


class Stumbling(HostDevice):
    """A device whose driver fails at one verb for client 1 in a way that nobody has thought of."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self._error = error

    def run(
        self, argv: Sequence[str], timeout: float, env: Mapping[str, str] | None = None, stdin: bytes = b""
    ) -> RunResult:
        if f"clients/{LIAR}/seed" in argv:
            raise self._error
        return super().run(argv, timeout, env, stdin)


@pytest.mark.parametrize(
    "error",
    [
        ValueError("nonsense"),
        IndexError("nonsense"),
        KeyError("nonsense"),
        TypeError("nonsense"),
        OverflowError("nonsense"),
        OSError("nonsense"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_that_nobody_thought_of_stops_at_the_devices_border(
    kit: TrainingKit, error: Exception
) -> None:
    assert_only_the_liar_is_dropped(one_round(partial(Stumbling, error), kit), "nonsense")


def test_an_error_of_the_server_is_not_taken_for_the_devices(kit: TrainingKit) -> None:
    def defect() -> None:
        raise ValueError("a defect of the server")

    with pytest.raises(ValueError, match="a defect of the server"):
        one_round(HostDevice, kit, about_to_lie=defect)


class Indescribable(HostDevice):
    def describe(self) -> DeviceDescription:
        raise TypeError("no description of itself")


def test_a_device_that_cannot_be_described_is_set_aside(kit: TrainingKit) -> None:
    devices = [TrainingDevice("odd", Indescribable, kit), TrainingDevice("even", HostDevice, kit)]
    told: list[str] = []
    with closing(DeviceLink(devices, tell=told.append)) as link:
        found = list(link.exchange(PLAN, [0, 1], lambda _, request: request))
    assert [outcome for _, outcome in found] == [b"trained: 0", b"trained: 1"]
    assert any("odd is set aside, corrupt: " in line for line in told)


@pytest.fixture
def lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that tells the lying `adb` what to answer; `now` in it is there until it has lied."""
    programs, folder = tmp_path / "programs", tmp_path / "lies"
    programs.mkdir()
    folder.mkdir()
    (programs / "adb").write_text(ADB)
    (programs / "adb").chmod(0o755)
    monkeypatch.setenv("PATH", str(programs), prepend=":")
    monkeypatch.setenv("LIES", str(folder))
    return folder


def instead_of(what: str) -> str:
    """A script that does what it should, and says something else on stderr."""
    return f'sh -c "$1" 2> "$LIES/said"; sed "{what}" "$LIES/said" >&2'


ABOUT_HASHES, ABOUT_SIZES, ABOUT_TRAINING = "sha256sum <.*said-1", "stat -c.*said-1", "client.sh converse"


@pytest.mark.parametrize(
    ("about", "script", "complaint"),
    [
        (ABOUT_HASHES, """sh -c "$1" | sed 's/ .*//'""", "sha256sum there said"),
        (ABOUT_HASHES, """sh -c "$1" | sed 's/.*/nothing of the kind/'""", "sha256sum there said"),
        (ABOUT_HASHES, """sh -c "$1" | sed 's/^./g/'""", "sha256sum there said"),
        (ABOUT_SIZES, """sh -c "$1" | sed 's/.*/about a page/'""", "stat there said 'about a page'"),
        (ABOUT_SIZES, """sh -c "$1" | sed 's/.*//'""", "stat there said"),
        (ABOUT_SIZES, """sh -c "$1" > /dev/null""", "missing: "),
        (ABOUT_SIZES, """sh -c "$1" | sed 's/.*/-1/'""", "stat there said '-1'"),
        (ABOUT_SIZES, """sh -c "$1" | sed 's/.*/3000000000/'""", "has 3000000000 bytes; expected at most"),
        (ABOUT_SIZES, """yes 7""", "printed more than 16 MB"),
        (ABOUT_TRAINING, instead_of(r"s/end 0/end $(yes 1 | head -5000 | tr -d '\n')/"), "5000 digits"),
        (ABOUT_TRAINING, instead_of("s/end 0/end 99999/"), "exit code 99999"),
        (ABOUT_TRAINING, instead_of("s/oom_kill.*/oom_kill $(yes 1 | head -30 | tr -d '\\n')/"), "30 digits"),
    ],
)
def test_an_adb_device_that_lies_costs_its_client(
    kit: TrainingKit, lies: Path, tmp_path: Path, about: str, script: str, complaint: str
) -> None:
    (lies / "about").write_text(about)
    (lies / "script").write_text(script)
    server = AdbServer()

    def open_device() -> Device:
        return AdbDevice("phone", server, folder=str(tmp_path / "phone"))

    assert shutil.which("adb") == str(tmp_path / "programs" / "adb")
    found = one_round(open_device, kit, about_to_lie=(lies / "now").touch)
    assert not (lies / "now").exists()  # it has lied
    assert_only_the_liar_is_dropped(found, complaint)


def test_memory_kills_counted_in_one_line_alone_are_unknown() -> None:
    frame = CommandFrame(word="w")
    for first, last in (("", "oom_kill 3"), ("oom_kill 3", ""), ("oom_kill 3", "oom_kill 2")):
        end = frame.end(f"w begin 12 {first}\nKilled\nw end 137 {last}\n".encode())
        assert end is not None
        assert end.memory_kills is None


def test_numbers_without_end_are_no_frame() -> None:
    frame, long = CommandFrame(word="w"), "1" * 5000
    assert frame.process_group(f"w begin {long} \n".encode()) is None
    for code, kills in ((long, "1"), ("0", long)):
        with pytest.raises(BadFrame, match="5000 digits"):
            frame.end(f"w begin 12 oom_kill 1\n\nw end {code} oom_kill {kills}\n".encode())
