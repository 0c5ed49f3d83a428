"""apt with its own state folder inside the cache, set to one architecture.

So it needs no root, changes nothing on the host, takes whatever mirror the host is set up with, and apt checks
signatures as always.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from ondevice.tools.cache_lock import cache_lock
from ondevice.tools.registries.pinned_file import RegistryError, run_client


def run_apt(cache_dir: Path, architecture: str, command: list[str], folder: Path | None = None) -> str:
    """What `command` printed, after `apt-get update` if that was never done or the command fails without it."""
    state = (Path(cache_dir) / "debian" / architecture / "apt").resolve()
    updated = state / "updated"
    with cache_lock(state, "apt"):
        config = _configured(state, architecture)
        if updated.exists():
            # A mirror drops what it has replaced: then the index is out of date, and is asked for once more.
            with contextlib.suppress(RegistryError):
                return _run(command, config, folder)
        _run(["apt-get", "update"], config)
        updated.touch()
        return _run(command, config, folder)


def _configured(state: Path, architecture: str) -> Path:
    for part in ("lists/partial", "archives/partial"):
        (state / part).mkdir(parents=True, exist_ok=True)
    config = state / "apt.conf"
    config.write_text(
        f'Dir::State "{state}";\nDir::State::status "/dev/null";\nDir::Cache "{state}";\n'
        f'APT::Architecture "{architecture}";\nAPT::Architectures {{ "{architecture}"; }};\n'
        # The sandbox user could not write here.
        'APT::Sandbox::User "";\n'
        # A warning that the index could not be fetched would leave us with the old one.
        'APT::Update::Error-Mode "any";\n'
    )
    return config


def _run(command: list[str], config: Path, folder: Path | None = None) -> str:
    try:
        return run_client(
            command,
            folder=folder,
            environment={"APT_CONFIG": str(config), "LC_ALL": "C"},
            install="it comes with Debian and its descendants: run this there",
        )
    except RegistryError as error:
        raise RegistryError(f"{error}; needs a Debian host with a working mirror") from None
