"""Options of the studies that contradict each other."""

import argparse

import pytest

from ffn.errors import ConfigError
from ffn.options import from_arguments
from ffn.studies.config import StudyConfig


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"workers": (4, 2)}, "workers"),
        ({"max_nodes": 8}, r"max_nodes: 8 .*\(16\)"),
    ],
)
def test_a_contradiction_is_named(changes, message):
    with pytest.raises(ConfigError, match=message):
        from_arguments(StudyConfig, argparse.Namespace(**changes))
