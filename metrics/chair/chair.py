"""The module that `evaluate.load` loads; all of it is in capeval_core."""

from capeval_core.integrations import evaluate_module  # From: capeval


class Chair(evaluate_module.MetricModule):
    metric_name = "chair"
