"""A configuration that gives a key twice."""

import pytest

from ffn.errors import ConfigError
from ffn.workflow.config_files import check_keys


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("volumes:\n  cube: {image: a.h5}\n  cube: {image: b.h5}\n", "line 3: 'cube' .* line 2"),
        ("train:\n  max_steps: 1\nmodel: {depth: 2}\ntrain: {}\n", "line 4: 'train' .* line 1"),
        ("volumes:\n  a:\n    masks:\n    - {path: a.h5,\n       path: b.h5}\n", "line 5: 'path' .* line 4"),
    ],
)
def test_a_key_that_is_given_twice_is_named_with_its_lines(text, lines, tmp_path):
    (tmp_path / "run.yaml").write_text(text)
    with pytest.raises(ConfigError, match=f"run.yaml: {lines}"):
        check_keys(tmp_path / "run.yaml")


@pytest.mark.parametrize(
    "content",
    [
        b"a: &a {b: 1}\nc: {<<: *a, b: 2}\nd: [*a, *a]\n",
        b'{"a": 1,\n\t"b": 2}',  # JSON with tabs, which Snakemake reads
        b"a: \xfc\n",
        b"",
    ],
)
def test_anything_else_is_left_to_the_reader(content, tmp_path):
    (tmp_path / "run.yaml").write_bytes(content)
    check_keys(tmp_path / "run.yaml")
