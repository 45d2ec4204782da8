"""A configuration that gives a key twice."""

import pytest

from ffn.errors import ConfigError
from ffn.workflow.pipeline import read_pipeline
from ffn.workflow.repeated_keys import check_keys

from ...small_run import ROOT


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "volumes:\n  cube: {image: a.h5}\n  cube: {image: b.h5}\n",
            "line 3: 'cube' is also in line 2, which would not",
        ),
        ("train:\n  max_steps: 1\nmodel: {depth: 2}\ntrain: {}\n", "line 4: 'train' is also in line 1"),
        ("volumes:\n  a:\n    masks:\n    - {path: a.h5,\n       path: b.h5}\n", "line 5: 'path' is also in line 4"),
    ],
)
def test_a_key_that_is_given_twice_is_named_with_its_lines(text, message, tmp_path):
    (tmp_path / "run.yaml").write_text(text)
    for read in (check_keys, read_pipeline):
        with pytest.raises(ConfigError, match=f"run.yaml: {message}"):
            read(tmp_path / "run.yaml")


@pytest.mark.parametrize(
    "content",
    [
        b"a: &a {b: 1}\nc: {<<: *a, b: 2}\nd: [*a, *a]\n",
        b"a: &a {b: *a}\n",
        b'{"a": 1,\n\t"b": 2}',  # JSON with tabs, which Snakemake reads
        b"a: \xfc\n",
        b"",
        b"- a\n- a\n",
    ],
)
def test_anything_else_is_left_to_the_reader(content, tmp_path):
    (tmp_path / "run.yaml").write_bytes(content)
    check_keys(tmp_path / "run.yaml")


def test_no_configuration_of_ours_repeats_a_key():
    for path in [ROOT / "config.yaml", *(ROOT / "config").glob("*.yaml")]:
        check_keys(path)
