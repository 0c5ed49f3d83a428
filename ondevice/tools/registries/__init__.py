"""Files from the package registries, pinned by their SHA-256 and fetched by each registry's own client.

    CHATS = PypiWheel("chitchat-dataset", "0.9.0", "7bf8...")
    path = fetch(CHATS, cache_dir)

A registry is a file here.  The client (npm, pip, apt) takes whatever mirror or proxy the machine is set up with; nothing
that is fetched is installed or run.  A file is fetched once; afterwards the cache serves it, offline too.
"""

from __future__ import annotations

from ondevice.tools.registries.debian import DebianIndex, DebianPackage, unpack_debian_package
from ondevice.tools.registries.npm import NpmPackage
from ondevice.tools.registries.pinned_file import PinnedFile, RegistryError, fetch
from ondevice.tools.registries.pypi import PypiWheel

__all__ = [
    "DebianIndex",
    "DebianPackage",
    "NpmPackage",
    "PinnedFile",
    "PypiWheel",
    "RegistryError",
    "fetch",
    "unpack_debian_package",
]
