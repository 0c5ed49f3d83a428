"""Which examples a client trains on in a round, and with which weights: one weighting per file.

A weighting is a frozen dataclass whose fields are its settings.  Adding one is a file here and a line in `WEIGHTINGS`; for
the native client, a file of the same name in `ondevice/native/client/weightings`, with its lines in `weightings.h` and in
the client's `build.py`.
"""

from __future__ import annotations

from collections.abc import Callable

from ondevice.client.weightings.importance import Importance
from ondevice.client.weightings.uniform import Uniform
from ondevice.client.weightings.virtual_clients import VirtualClients
from ondevice.client.weightings.weighting import Weighting, WeightingView

__all__ = ["WEIGHTINGS", "Weighting", "WeightingView"]

WEIGHTINGS: dict[str, Callable[..., Weighting]] = {
    "uniform": Uniform,
    "virtual_clients": VirtualClients,
    "importance": Importance,
}
