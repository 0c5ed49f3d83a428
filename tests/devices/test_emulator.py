"""The emulated phone and its adbd, with the real adb client: limits that hold, faults that are told apart."""

from __future__ import annotations

import os
import random
import signal
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
from helpers.native.arm_programs import CACHE, MEMORY_HOG, compile_for_arm64, require_programs

from android_harness.devices.adb import AdbDevice
from android_harness.devices.adb_server import AdbServer
from android_harness.devices.device import DeviceError, FailureReason
from android_harness.emulator.machine import EMULATOR_PROGRAMS, Emulator, tied_emulator

pytestmark = pytest.mark.slow  # real machines, booted and killed

MEMORY_MB = 160
DISK_MB = 64


@pytest.fixture(scope="module")
def phone() -> Iterator[Emulator]:
    require_programs(*EMULATOR_PROGRAMS)
    with tied_emulator(CACHE, f"faults-{os.getpid()}", memory_mb=MEMORY_MB, disk_mb=DISK_MB) as emulator:
        yield emulator


@pytest.fixture
def device(phone: Emulator) -> Iterator[AdbDevice]:
    with closing(phone.device()) as behind_adb:
        yield behind_adb


def adb(phone: Emulator, *arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return phone.server.run(["-s", phone.machine.serial, *arguments], timeout=30.0, stdin=stdin)


def test_it_describes_itself_as_the_machine_that_was_asked_for(phone: Emulator, device: AdbDevice) -> None:
    description = device.describe()
    assert (description.abi, description.cores, description.emulated) == ("aarch64", 1, True)
    assert MEMORY_MB * 0.75 < description.ram_mb < MEMORY_MB
    assert DISK_MB * 0.5 < description.free_mb < DISK_MB
    assert description.name == f"emulator:{phone.machine.name}"
    assert description.android_version is None  # it is no Android and does not pretend to be


def test_programs_run_as_the_shell_user_in_one_folder_that_closing_deletes(phone: Emulator) -> None:
    device = phone.device(folder="/data/local/tmp/fedss-test")
    assert device.run(["sh", "-c", "id -u; pwd"], 60.0).stdout == "2000\n/data/local/tmp/fedss-test\n"
    device.close()
    assert adb(phone, "shell", "ls /data/local/tmp").stdout == b""


def test_a_client_that_needs_more_memory_than_there_is_is_killed_and_the_phone_lives_on(
    device: AdbDevice, tmp_path: Path
) -> None:
    device.push(compile_for_arm64(MEMORY_HOG, tmp_path / "hog"), "hog")
    assert device.run(["./hog", "60"], 60.0).exit_code == 0
    with pytest.raises(DeviceError, match=r"killed \./hog 400 for memory") as failure:
        device.run(["./hog", "400"], 60.0)
    assert failure.value.reason is FailureReason.KILLED_FOR_MEMORY
    assert device.run(["./hog", "60"], 60.0).exit_code == 0


def test_a_kill_that_is_not_for_memory_is_an_exit_code(device: AdbDevice) -> None:
    assert device.run(["sh", "-c", "kill -9 $$"], 60.0).exit_code == 137


def test_a_full_disk_is_recognised_and_leaves_room_again(device: AdbDevice, tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(bytes(DISK_MB * 2**20))
    with pytest.raises(DeviceError, match="No space left on device") as failure:
        device.push(tmp_path / "large", "large")
    assert failure.value.reason is FailureReason.DISK_FULL
    (tmp_path / "small").write_bytes(os.urandom(10 * 2**20))
    device.push(tmp_path / "small", "small")
    written = device.run(["dd", "if=/dev/zero", "of=filler", "bs=65536"], 60.0)
    with pytest.raises(DeviceError) as failure:
        written.expect_success("dd")
    assert failure.value.reason is FailureReason.DISK_FULL
    device.remove("filler")


def test_a_file_that_changes_under_way_is_corrupt_and_not_kept(device: AdbDevice, tmp_path: Path) -> None:
    device.run(["sh", "-c", "while [ ! -e stop ]; do echo more >> growing; done > /dev/null 2>&1 &"], 60.0)
    try:
        with pytest.raises(DeviceError, match="sha256 differs") as failure:
            device.pull("growing", tmp_path / "growing")
        assert failure.value.reason is FailureReason.CORRUPT
        assert list(tmp_path.iterdir()) == []
    finally:
        device.run(["touch", "stop"], 60.0)


def test_when_the_client_is_killed_its_command_dies_with_it(phone: Emulator, device: AdbDevice) -> None:
    command = phone.server.command("-s", phone.machine.serial, "shell", "-T", "echo up; sleep 600")
    client = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert client.stdout is not None
    assert client.stdout.readline() == b"up\n"
    assert device.run(["pidof", "sleep"], 60.0).exit_code == 0
    client.kill()
    client.communicate()
    assert any(device.run(["pidof", "sleep"], 60.0).exit_code == 1 for _ in range(50))


def test_a_lost_connection_is_made_again(phone: Emulator, device: AdbDevice) -> None:
    phone.server.run(["disconnect"], timeout=30.0)
    assert device.run(["echo", "back"], 60.0).stdout == "back\n"


def test_a_killed_adb_server_is_started_again(phone: Emulator, device: AdbDevice, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("content")
    kill_server(phone.server)
    device.push(tmp_path / "file", "file")
    kill_server(phone.server)
    assert device.run(["cat", "file"], 60.0).stdout == "content"


def test_a_push_that_is_cut_off_starts_over_and_arrives_whole(
    phone: Emulator, device: AdbDevice, tmp_path: Path
) -> None:
    (tmp_path / "sent").write_bytes(os.urandom(15 * 2**20))
    killer = threading.Timer(0.5, kill_server, [phone.server])
    killer.start()
    device.push(tmp_path / "sent", "file")
    killer.join()
    device.pull("file", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == (tmp_path / "sent").read_bytes()


def test_a_killed_adb_server_ends_the_run_that_was_under_way(phone: Emulator, device: AdbDevice) -> None:
    killer = threading.Timer(1.0, kill_server, [phone.server])
    killer.start()
    with pytest.raises(DeviceError, match="connection was lost while sleep 50 ran") as failure:
        device.run(["sleep", "50"], 60.0)
    assert failure.value.reason is FailureReason.GONE
    assert device.run(["echo", "here"], 60.0).stdout == "here\n"
    assert any(
        device.run(["pidof", "sleep"], 60.0).exit_code == 1 for _ in range(50)
    )  # it does not run on unseen


def kill_server(server: AdbServer) -> None:
    assert server.process is not None
    os.kill(server.process.pid, signal.SIGKILL)
    server.process.wait()


def test_nothing_listens_beyond_this_host(phone: Emulator) -> None:
    assert phone.machine.process is not None
    assert phone.server.process is not None
    listening = [
        address for pid in (phone.machine.process.pid, phone.server.process.pid) for address in bound(pid)
    ]
    assert sorted(listening) == sorted(
        [("127.0.0.1", phone.machine.adb_port), ("127.0.0.1", phone.server.port)]
    )


def bound(pid: int) -> list[tuple[str, int]]:
    """Addresses on which the process takes TCP connections or has a bound UDP socket."""
    links = [os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir()]
    inodes = {link[8:-1] for link in links if link.startswith("socket:[")}
    found = []
    for protocol, waiting in (("tcp", "0A"), ("tcp6", "0A"), ("udp", "07"), ("udp6", "07")):
        for line in Path(f"/proc/net/{protocol}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[9] in inodes and fields[3] == waiting:
                address, port = fields[1].split(":")
                packed = struct.pack("<I", int(address, 16)) if len(address) == 8 else b"\xff" * 4
                found.append((socket.inet_ntoa(packed), int(port, 16)))
    return found


def test_getprop_answers_like_androids(phone: Emulator) -> None:
    assert adb(phone, "shell", "getprop ro.product.cpu.abi").stdout == b"arm64-v8a\n"
    assert adb(phone, "shell", "getprop no.such.thing").stdout == b"\n"
    assert b"[ro.kernel.qemu]: [1]\n" in adb(phone, "shell", "getprop").stdout


def test_the_plain_client_sees_files_and_folders(phone: Emulator) -> None:
    listing = adb(phone, "ls", "/").stdout.decode()
    assert {"bin", "data", "system"} <= {line.split()[-1] for line in listing.splitlines()}
    assert adb(phone, "exec-out", "printf 'raw\\n'").stdout == b"raw\n"
    assert adb(phone, "shell", "-x", "echo version 1").stdout == b"version 1\n"


def test_a_terminal_is_given_on_request(phone: Emulator) -> None:
    answer = adb(phone, "shell", "-tt", "tty; stty size")
    assert answer.stdout.startswith(b"/dev/pts/")


@pytest.mark.parametrize("service", ["reboot:", "root:", "tcpip:5555", "shell", "framebuffer:", "sync", ""])
def test_services_it_does_not_know_are_refused(phone: Emulator, service: str) -> None:
    with raw_connection(phone) as connection:
        send_packet(connection, b"OPEN", 1, 0, service.encode() + b"\0")
        assert receive_packet(connection)[:3] == (b"CLSE", 0, 1)


@pytest.mark.parametrize(
    "nonsense",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".ljust(64, b" "),
        struct.pack("<4s5I", b"WRTE", 1, 1, 2**31, 0, 0xFFFFFFFF ^ int.from_bytes(b"WRTE", "little")),
        struct.pack("<4s5I", b"OPEN", 1, 1, 0, 0, 12345),
    ],
    ids=["another protocol", "two gigabytes announced", "broken header"],
)
def test_whoever_breaks_the_protocol_is_hung_up_on_and_others_are_still_served(
    phone: Emulator, device: AdbDevice, nonsense: bytes
) -> None:
    with raw_connection(phone) as connection:
        connection.sendall(nonsense)
        with suppress(ConnectionResetError):  # also an end
            assert connection.recv(1) == b""
    assert device.run(["echo", "fine"], 60.0).stdout == "fine\n"


def test_unknown_sync_requests_and_oversized_chunks_fail_with_a_reason(phone: Emulator) -> None:
    send = b"SEND" + struct.pack("<I", 22) + b"/data/local/tmp/x,0644"
    for request, reason in [
        (b"EVIL" + struct.pack("<I", 0), b"unknown sync request EVIL"),
        (b"STAT" + struct.pack("<I", 2**20), b"path longer"),
        (send + b"DATA" + struct.pack("<I", 2**30), b"at most 65536 bytes"),
    ]:
        with raw_connection(phone) as connection:
            send_packet(connection, b"OPEN", 1, 0, b"sync:\0")
            _, stream, _, _ = receive_packet(connection)
            send_packet(connection, b"WRTE", 1, stream, request)
            assert reason in b"".join(receive_packet(connection)[3] for _ in range(2))


def test_random_packets_neither_stop_adbd_nor_leave_processes(phone: Emulator, device: AdbDevice) -> None:
    def adbd_processes() -> int:
        return len(device.run(["pidof", "adbd"], 60.0).expect_success("pidof").stdout.split())

    before = adbd_processes()
    assert before >= 3  # the one that listens, our connection and the command that counts
    rng = random.Random(0)
    commands, services = (
        [b"OPEN", b"OKAY", b"WRTE", b"CLSE", b"SYNC", b"AUTH", b"XXXX"],
        [b"sync:\0", b"shell,v2:cat\0"],
    )
    for _ in range(20):
        with raw_connection(phone) as connection, suppress(ConnectionError):
            for _ in range(30):
                payload = rng.choice([*services, rng.randbytes(rng.randrange(300))])
                send_packet(connection, rng.choice(commands), rng.randrange(6), rng.randrange(6), payload)
    assert any(adbd_processes() == before for _ in range(50))


def raw_connection(phone: Emulator) -> socket.socket:
    """A client without manners, past the handshake."""
    connection = socket.create_connection(("127.0.0.1", phone.machine.adb_port), timeout=20.0)
    send_packet(connection, b"CNXN", 0x01000001, 256 * 1024, b"host::\0")
    command, _, _, banner = receive_packet(connection)
    assert command == b"CNXN"
    assert banner.startswith(b"device::")
    return connection


def send_packet(connection: socket.socket, command: bytes, first: int, second: int, payload: bytes) -> None:
    inverted = 0xFFFFFFFF ^ int.from_bytes(command, "little")
    connection.sendall(struct.pack("<4s5I", command, first, second, len(payload), 0, inverted) + payload)


def receive_packet(connection: socket.socket) -> tuple[bytes, int, int, bytes]:
    command, first, second, length, _, _ = struct.unpack("<4s5I", receive(connection, 24))
    return command, first, second, receive(connection, length)


def receive(connection: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size:
        part = connection.recv(size - len(received))
        assert part, "the phone hung up"
        received += part
    return received


def test_power_lost_in_the_middle_is_noticed_and_the_disk_survives(phone: Emulator, tmp_path: Path) -> None:
    device = phone.device()
    (tmp_path / "kept").write_bytes(os.urandom(100_000))
    device.push(tmp_path / "kept", "kept")
    device.run(["sync"], 60.0)
    threading.Timer(1.0, phone.power_off).start()
    began = time.monotonic()
    with pytest.raises(DeviceError) as failure:
        device.run(["sleep", "50"], 60.0)
    assert failure.value.reason is FailureReason.GONE
    with pytest.raises(DeviceError, match="is powered off") as failure:
        device.run(["echo"], 60.0)
    assert failure.value.reason is FailureReason.GONE
    assert time.monotonic() - began < 20  # it is not waited for
    phone.power_on()
    device.pull("kept", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == (tmp_path / "kept").read_bytes()
    device.close()


def test_a_phone_that_disappears_and_returns_is_waited_for(phone: Emulator) -> None:
    unaware = AdbDevice(
        phone.machine.serial, phone.server, patience=120.0
    )  # as with a phone: nobody knows of its power
    phone.power_off()
    threading.Timer(1.0, phone.power_on).start()
    assert unaware.run(["echo", "returned"], 60.0).stdout == "returned\n"
    unaware.close()


def test_a_phone_that_stays_away_is_gone_when_patience_ends(phone: Emulator) -> None:
    absent = AdbDevice("127.0.0.1:9", phone.server, patience=1.5)
    began = time.monotonic()
    with pytest.raises(DeviceError, match=r"adb:127.0.0.1:9 did not answer") as failure:
        absent.run(["echo"], 60.0)
    assert failure.value.reason is FailureReason.GONE
    assert time.monotonic() - began < 15
    absent.close()
