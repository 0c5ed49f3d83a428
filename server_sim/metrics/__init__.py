"""How good the global model is, by name: `evaluation.metric` in an experiment.

Adding a metric is a file here and a line in `METRICS`.
"""

from __future__ import annotations

from server_sim.metrics.map_at_r import MAP_AT_R
from server_sim.metrics.metric import EvaluationView, Metric
from server_sim.metrics.precision import PRECISION
from server_sim.metrics.top1 import TOP1
from server_sim.metrics.train_top1 import TRAIN_TOP1

__all__ = ["METRICS", "EvaluationView", "Metric"]

METRICS: dict[str, Metric] = {
    "top1": TOP1,
    "map_at_r": MAP_AT_R,
    "train_top1": TRAIN_TOP1,
    "precision": PRECISION,
}
