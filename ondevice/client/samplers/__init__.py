"""Which rows a client asks for, the side arrays that follow from the draw, or what classes stand for: a sampler per file.

A sampler is a frozen dataclass whose fields are its settings.  Adding one is a file here and a line in `SAMPLERS`; for the
native client, a file of the same name in `ondevice/native/client/samplers`, with its lines in `samplers.h` and in the
client's `build.py`.
"""

from __future__ import annotations

from collections.abc import Callable

from ondevice.client.samplers.all_rows import AllRows
from ondevice.client.samplers.class_outputs import ClassOutputs
from ondevice.client.samplers.label_hashes import LabelHashes
from ondevice.client.samplers.nearest_rows import NearestRows
from ondevice.client.samplers.positives import Positives
from ondevice.client.samplers.sampling import Sampler, SamplingView
from ondevice.client.samplers.uniform_negatives import UniformNegatives
from ondevice.client.samplers.word_negatives import WordNegatives

__all__ = ["SAMPLERS", "Sampler", "SamplingView"]

SAMPLERS: dict[str, Callable[..., Sampler]] = {
    "uniform_negatives": UniformNegatives,
    "positives": Positives,
    "all_rows": AllRows,
    "word_negatives": WordNegatives,
    "nearest_rows": NearestRows,
    "label_hashes": LabelHashes,
    "class_outputs": ClassOutputs,
}
