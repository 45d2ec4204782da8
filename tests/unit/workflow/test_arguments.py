"""Arguments of commands are quoted for the shell."""

import shlex

from ffn.workflow import arguments


def test_an_option_without_files_is_nothing():
    assert arguments.option("--truth", []) == ""


def test_files_are_quoted_with_their_dataset():
    text = arguments.option("--probability", ["a b.h5", "c'd.h5"], ":probability")
    assert shlex.split(text) == ["--probability", "a b.h5:probability", "c'd.h5:probability"]


def test_variables_of_a_node_reach_the_node():
    assert arguments.staging(None, {"stage_to": "$TMPDIR"}) == "--stage-to '$TMPDIR'"
    assert arguments.staging(None, {}) == ""
