"""FedAvg over many labels: one network with an output per class, all of which every client trains; FedMLH's baseline."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Literal

from ondevice.contract.choice import Choice
from server_sim.schemes.scheme import Scheme

if TYPE_CHECKING:
    from ondevice.contract.vocabulary import StepSpec
    from server_sim.data.population import Population


class FedAvgLabels(Scheme):
    label: ClassVar[str] = "FedAvg"
    name: Literal["fedavg_labels"] = "fedavg_labels"

    def sampler(self) -> Choice:
        return Choice("class_outputs")

    def shaped(self, spec: StepSpec, population: Population) -> StepSpec:
        arguments = {**spec.architecture_arguments, "sub_models": 1}
        return replace(spec, embedding_dim=population.num_classes, architecture_arguments=arguments)
