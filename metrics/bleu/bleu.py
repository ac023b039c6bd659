"""The module that `evaluate.load` loads; all of it is in capeval_core."""

from capeval_core.integrations import evaluate_module  # From: capeval


class Bleu(evaluate_module.MetricModule):
    metric_name = "bleu"
