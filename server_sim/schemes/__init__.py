"""What a federation does, by name: `scheme.name` in an experiment, with the scheme's own settings beside it.

Adding a scheme is a file here and a line in `SCHEMES`: a sampler, a weighting, settings, and hooks on the server.
"""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError
from pydantic_core import PydanticCustomError

from server_sim.experiment_fields import STATED, explain
from server_sim.schemes.centralized import Centralized
from server_sim.schemes.fedavg_labels import FedAvgLabels
from server_sim.schemes.fedaws import FedAwS
from server_sim.schemes.fedmlh import FedMLH
from server_sim.schemes.fedss import FedSS
from server_sim.schemes.fedss_words import FedSSWords
from server_sim.schemes.full_softmax import FullSoftmax
from server_sim.schemes.nearest import Nearest
from server_sim.schemes.negatives_only import NegativesOnly
from server_sim.schemes.positives_only import PositivesOnly
from server_sim.schemes.scheme import RoundContext, Scheme

__all__ = ["SCHEMES", "RoundContext", "Scheme", "scheme_from"]

SCHEMES: dict[str, type[Scheme]] = {
    "fedss": FedSS,
    "fedss_words": FedSSWords,
    "negatives_only": NegativesOnly,
    "positives_only": PositivesOnly,
    "fedaws": FedAwS,
    "nearest": Nearest,
    "full_softmax": FullSoftmax,
    "fedmlh": FedMLH,
    "fedavg_labels": FedAvgLabels,
    "centralized": Centralized,
}


def scheme_from(settings: Any) -> Any:
    """A scheme from an experiment's section; an error names the setting that is wrong."""
    if isinstance(settings, Scheme) or not isinstance(settings, dict):
        return settings
    name = settings.get("name", "fedss")
    if not isinstance(name, str) or name not in SCHEMES:
        raise _stated(f"scheme.name is {name!r}; expected one of {', '.join(SCHEMES)}")
    try:
        return SCHEMES[name].model_validate(settings)
    except ValidationError as errors:
        lines = [explain(error, SCHEMES[name], "scheme") for error in errors.errors()]
        raise _stated("\n  ".join(lines)) from None


def _stated(text: str) -> PydanticCustomError:
    return PydanticCustomError(STATED, "{text}", {"text": text})
