"""What the emulated phone boots from: Debian's cloud kernel, a small initial RAM disk, and a disk.

Nothing here needs root: packages are unpacked and not installed, the RAM disk's archive is written by hand
(device nodes included), and `mke2fs -d` fills the disk.  The guest holds busybox, our adbd and nothing else; a
client's bundle brings its own libraries, as it must on a phone.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import os
import re
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from android_harness.bundles.debian_packages import (
    MissingPackage,
    dependency_of,
    find_program,
    unpack_package,
)
from ondevice.tools.cache_lock import cache_lock

_GUEST_SOURCES = Path(__file__).parent / "guest"

# virtio over MMIO: probing a PCI bus takes longer.
_DRIVERS = (
    "drivers/virtio/virtio",
    "drivers/virtio/virtio_ring",
    "drivers/virtio/virtio_mmio",
    "drivers/block/virtio_blk",
    "net/core/failover",
    "drivers/net/net_failover",
    "drivers/net/virtio_net",
)

# The kernel of a phone of 2025, where the suite has it: ext4 of Debian's 6.1.192 reads through a null pointer
# (ext4_mb_load_buddy_gfp) when it allocates after memory ran short, and the phone then answers no more.
_KERNELS = ("linux-image-6.12-cloud-arm64", "linux-image-cloud-arm64")

# The busybox programs on the phone's path: about what toybox gives a shell user on Android.
_APPLETS = (
    "awk basename cat chmod chown cmp cp cut date dd df dirname dmesg du echo env expr false find free grep gunzip gzip "
    "head hostname id ifconfig kill ln ls md5sum mkdir mktemp mount mv netstat nproc od pidof printf ps pwd readlink "
    "rm rmdir sed seq setsid sh sha256sum sleep sort stat stty sync tail tar taskset tee test time timeout top touch tr "
    "true truncate tty umount uname uniq uptime wc which whoami xargs xxd yes"
)


@dataclass(frozen=True)
class GuestImage:
    """Files that every emulated phone shares, read only."""

    kernel: Path
    initramfs: Path
    root: Path  # what a new disk starts with


def guest_image(cache_dir: Path) -> GuestImage:
    """The image for the sources as they are now, from the cache or built into it (a minute, with the download)."""
    kernel = unpack_package(cache_dir, _kernel_package(cache_dir))
    busybox = unpack_package(cache_dir, "busybox-static")
    key = hashlib.sha256(f"{kernel.sha256} {busybox.sha256}".encode())
    for source in [Path(__file__), *sorted(_GUEST_SOURCES.iterdir())]:
        key.update(source.name.encode() + b"\0" + source.read_bytes())
    home = cache_dir / "guest" / key.hexdigest()[:16]
    with cache_lock(cache_dir, "guest"):
        if not _is_intact(home):
            _build(home, kernel.root, busybox.root / "bin" / "busybox")
    return GuestImage(kernel=home / "kernel", initramfs=home / "initramfs", root=home / "root")


def _kernel_package(cache_dir: Path) -> str:
    """The package that holds the kernel: the first of `_KERNELS` that Debian's suite here knows."""
    *preferred, last = _KERNELS
    for metapackage in preferred:
        with suppress(MissingPackage):
            return dependency_of(cache_dir, metapackage, prefix="linux-image-")
    return dependency_of(cache_dir, last, prefix="linux-image-")


def make_disk(image: GuestImage, disk: Path, size_mb: int) -> None:
    """Writes a new ext4 disk, sparse, so that its size costs nothing until it is used."""
    with disk.open("wb") as file:
        file.truncate(size_mb * 2**20)
    options = ["-q", "-t", "ext4", "-m", "0", "-J", "size=4", "-E", "root_owner=0:0", "-d", str(image.root)]
    made = subprocess.run([find_program("mke2fs"), *options, str(disk)], capture_output=True, text=True)
    if made.returncode != 0:
        raise RuntimeError(f"cannot make the phone's disk {disk} of {size_mb} MB: {made.stderr.strip()}")


def _build(home: Path, kernel_root: Path, busybox: Path) -> None:
    shutil.rmtree(home, ignore_errors=True)
    home.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home.parent, prefix=".building-") as folder:
        building = Path(folder) / "image"
        building.mkdir()
        (kernel,) = (kernel_root / "boot").glob("vmlinuz-*")
        shutil.copyfile(kernel, building / "kernel")
        (modules,) = (kernel_root / "lib" / "modules").iterdir()
        (building / "initramfs").write_bytes(_initramfs(busybox, read_drivers(modules)))
        _fill_root(building / "root", busybox)
        (building / "sha256.json").write_text(json.dumps(_hashes(building), indent=1))
        os.replace(building, home)


def _fill_root(root: Path, busybox: Path) -> None:
    for folder in ("bin", "data/local/tmp", "dev", "etc", "proc", "sys", "system", "tmp"):
        (root / folder).mkdir(parents=True)
    shutil.copyfile(busybox, root / "bin" / "busybox")
    for applet in _APPLETS.split():
        (root / "bin" / applet).symlink_to("busybox")
    (root / "system" / "bin").symlink_to("/bin")  # scripts for Android begin with #!/system/bin/sh
    (root / "etc" / "passwd").write_text(
        "root:x:0:0::/:/bin/sh\nshell:x:2000:2000::/data/local/tmp:/bin/sh\n"
    )
    (root / "etc" / "group").write_text("root:x:0:\nshell:x:2000:\n")
    shutil.copyfile(_GUEST_SOURCES / "init.sh", root / "init")
    shutil.copyfile(_GUEST_SOURCES / "getprop.sh", root / "bin" / "getprop")
    shutil.copyfile(_GUEST_SOURCES / "build.prop", root / "system" / "build.prop")
    compiler = find_program("aarch64-linux-gnu-g++")
    sources = [str(source) for source in sorted(_GUEST_SOURCES.glob("*.cpp"))]
    options = ["-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror", "-static", "-s"]
    subprocess.run([compiler, *options, "-o", str(root / "bin" / "adbd"), *sources], check=True)
    for program in ("init", "bin/busybox", "bin/getprop", "bin/adbd"):
        (root / program).chmod(0o755)


def read_drivers(modules: Path) -> dict[str, bytes]:
    """The drivers that are files of their own in this kernel, by name; Linux 6.12 has some of them built in."""
    built_in = (modules / "modules.builtin").read_text().split()
    drivers = {}
    for driver in _DRIVERS:
        name = Path(driver).name
        plain, packed = (modules / "kernel" / f"{driver}{ending}" for ending in (".ko", ".ko.xz"))
        if plain.is_file():
            drivers[name] = plain.read_bytes()
        elif packed.is_file():
            drivers[name] = lzma.decompress(packed.read_bytes())
        elif f"kernel/{driver}.ko" not in built_in:
            raise RuntimeError(f"the kernel of the emulated phone, {modules.name}, has no driver {driver}")
    return drivers


def _initramfs(busybox: Path, drivers: Mapping[str, bytes]) -> bytes:
    """The first file system of the guest, as the kernel takes it: a cpio archive in the "newc" format."""
    folder, program, character_device = stat.S_IFDIR | 0o755, stat.S_IFREG | 0o755, stat.S_IFCHR | 0o600
    entries = [_cpio_entry(name, folder) for name in ("bin", "dev", "disk", "drivers")]
    entries.append(_cpio_entry("dev/console", character_device, device=(5, 1)))
    entries.append(_cpio_entry("init", program, (_GUEST_SOURCES / "initramfs_init.sh").read_bytes()))
    entries.append(_cpio_entry("bin/busybox", program, busybox.read_bytes()))
    for at, (driver, content) in enumerate(in_loading_order(drivers).items()):
        entries.append(_cpio_entry(f"drivers/{at}-{driver}.ko", program, content))
    return b"".join([*entries, _cpio_entry("TRAILER!!!", 0)])


def in_loading_order(drivers: Mapping[str, bytes]) -> dict[str, bytes]:
    """Every driver behind those that it needs, as it says itself: one kernel's order is not the next one's."""
    loaded: dict[str, bytes] = {}
    waiting = dict(drivers)
    while waiting:
        ready = [name for name, content in waiting.items() if _needed_by(content) <= set(loaded)]
        if not ready:
            needs = {name: sorted(_needed_by(content) - set(loaded)) for name, content in waiting.items()}
            raise RuntimeError(f"drivers of the emulated phone need others that it does not have: {needs}")
        for name in ready:
            loaded[name] = waiting.pop(name)
    return loaded


def _needed_by(driver: bytes) -> set[str]:
    found = re.search(rb"\0depends=([^\0]*)\0", driver)
    return set(found[1].decode().split(",")) - {""} if found else set()


def _cpio_entry(name: str, mode: int, content: bytes = b"", device: tuple[int, int] = (0, 0)) -> bytes:
    # inode, mode, uid, gid, links, mtime, size, device of the file (2), device node (2), name length, checksum
    numbers = (0, mode, 0, 0, 1, 0, len(content), 0, 0, *device, len(name) + 1, 0)
    header = b"070701" + b"".join(b"%08X" % number for number in numbers) + name.encode() + b"\0"
    return _padded(header) + _padded(content)


def _padded(content: bytes) -> bytes:
    return content + bytes(-len(content) % 4)


def _hashes(home: Path) -> dict[str, str]:
    files = [path for path in sorted(home.rglob("*")) if path.is_file() and not path.is_symlink()]
    return {
        str(path.relative_to(home)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
        if path.name != "sha256.json"
    }


def _is_intact(home: Path) -> bool:
    """Whether the cached image is there and what it was when built; if not it is simply built again."""
    recorded = home / "sha256.json"
    return recorded.is_file() and json.loads(recorded.read_text()) == _hashes(home)
