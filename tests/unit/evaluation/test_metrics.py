"""The list of metrics names what a score file holds, all of it and nothing else."""

import numpy as np

from ffn.contingency import count_pairs
from ffn.evaluation.metrics import METRICS
from ffn.evaluation.scores import CONVENTIONS, score, summarize


def test_every_metric_is_in_a_score_file_and_every_score_is_a_metric():
    table = count_pairs(np.array([1, 1, 2, 2]), np.array([5, 5, 5, 0]))
    scores = summarize(dict.fromkeys(CONVENTIONS, table))
    for convention in CONVENTIONS:
        assert all(isinstance(metric.value(scores, convention), float) for metric in METRICS)
        assert set(scores["scores"][convention]) == {metric.name for metric in METRICS if metric.by_convention}
    nothing = count_pairs(np.array([1, 1]), np.array([0, 0]))
    assert score(nothing, "foreground") == dict.fromkeys(scores["scores"]["all"])
