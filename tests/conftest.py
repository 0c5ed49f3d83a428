"""How every test process is set up, and the tiny federation that fits on a screen."""

from __future__ import annotations

import signal

import pytest
import torch
from helpers.federations.tiny_federation import TinyFederation

pytest_plugins = ["helpers.skips"]

torch.set_num_threads(1)
# A shell's background jobs ignore Ctrl-C, and so would all programs that tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def tiny() -> TinyFederation:
    return TinyFederation()
