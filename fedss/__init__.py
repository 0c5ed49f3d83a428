"""Federated sampled softmax on phones: the library.  The command line `fedss` is a thin layer over it.

    import fedss
    run = fedss.simulate("glyphs-tiny", rounds=2, out="runs/first", on_round=print)
    fedss.report(run.path, out="report.html")

Everything here is typed and silent.  A name is imported when it is first used, because torch alone takes seconds.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedss.api.artifacts import Head, Inspection, export, inspect, open_artifact
    from fedss.api.errors import CheckFailed, UsageError
    from fedss.api.measurements import BenchRow, MemoryLimit, bench, find_max_batch
    from fedss.api.populations import (
        PartitionStatistics,
        Population,
        describe_partition,
        draw_contact_sheet,
        draw_partition,
        import_images,
        open_population,
    )
    from fedss.api.pretraining import Pretrained, pretrain
    from fedss.api.profiles import StepProfile, profile
    from fedss.api.reports import Report, report, write_report
    from fedss.api.runs import Interrupted, Run, RunStart, open_run, simulate
    from fedss.api.tables import Table, simulate_table
    from fedss.device_rounds import DeviceChoice, DevicesExhausted
    from ondevice.contract.artifact import Artifact, ArtifactError
    from ondevice.contract.vocabulary import StepSpec
    from server_sim.experiment import ConfigurationError, Experiment, load_experiment
    from server_sim.runs.records import RoundRecord
    from server_sim.runs.tables import TableCell

__all__ = [
    "Artifact",
    "ArtifactError",
    "BenchRow",
    "CheckFailed",
    "ConfigurationError",
    "DeviceChoice",
    "DevicesExhausted",
    "Experiment",
    "Head",
    "Inspection",
    "Interrupted",
    "MemoryLimit",
    "PartitionStatistics",
    "Population",
    "Pretrained",
    "Report",
    "RoundRecord",
    "Run",
    "RunStart",
    "StepProfile",
    "StepSpec",
    "Table",
    "TableCell",
    "UsageError",
    "bench",
    "describe_partition",
    "draw_contact_sheet",
    "draw_partition",
    "export",
    "find_max_batch",
    "import_images",
    "inspect",
    "load_experiment",
    "open_artifact",
    "open_population",
    "open_run",
    "pretrain",
    "profile",
    "report",
    "simulate",
    "simulate_table",
    "write_report",
]

_MODULES = {
    "fedss.api.artifacts": "Head Inspection export inspect open_artifact",
    "fedss.api.errors": "CheckFailed UsageError",
    "fedss.api.measurements": "BenchRow MemoryLimit bench find_max_batch",
    "fedss.api.populations": "PartitionStatistics Population describe_partition draw_contact_sheet draw_partition "
    "import_images open_population",
    "fedss.api.pretraining": "Pretrained pretrain",
    "fedss.api.profiles": "StepProfile profile",
    "fedss.api.reports": "Report report write_report",
    "fedss.api.runs": "Interrupted Run RunStart open_run simulate",
    "fedss.api.tables": "Table simulate_table",
    "fedss.device_rounds": "DeviceChoice DevicesExhausted",
    "ondevice.contract.artifact": "Artifact ArtifactError",
    "ondevice.contract.vocabulary": "StepSpec",
    "server_sim.experiment": "ConfigurationError Experiment load_experiment",
    "server_sim.runs.records": "RoundRecord",
    "server_sim.runs.tables": "TableCell",
}
_HOME = {name: module for module, names in _MODULES.items() for name in names.split()}


if not TYPE_CHECKING:  # or a checker would take any name for one of ours

    def __getattr__(name: str) -> object:
        if name not in _HOME:
            raise AttributeError(f"module 'fedss' has no attribute {name!r}; it has {', '.join(__all__)}")
        value: object = getattr(import_module(_HOME[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
