"""Who gets which training examples, by the names people know: one partitioner per file.

A partitioner is a frozen dataclass whose fields are its settings.  Adding one is a file here and a line in `PARTITIONERS`.
"""

from __future__ import annotations

from collections.abc import Callable

from server_sim.data.partitioners.dirichlet import Dirichlet
from server_sim.data.partitioners.few_classes import FewClasses
from server_sim.data.partitioners.frequent_classes import FrequentClasses
from server_sim.data.partitioners.geo import Geo
from server_sim.data.partitioners.iid import Iid
from server_sim.data.partitioners.natural_id import NaturalId
from server_sim.data.partitioners.partitioner import NOBODY, Partitioner, Pool
from server_sim.data.partitioners.pathological import Pathological

__all__ = ["NOBODY", "PARTITIONERS", "Partitioner", "Pool"]

PARTITIONERS: dict[str, Callable[..., Partitioner]] = {
    "iid": Iid,
    "dirichlet": Dirichlet,
    "pathological": Pathological,
    "natural_id": NaturalId,
    "geo": Geo,
    "few_classes": FewClasses,
    "frequent_classes": FrequentClasses,
}
