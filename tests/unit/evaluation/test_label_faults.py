"""Faults of painted labels, one planted at a time, and the command that lists them."""

import numpy as np
import pytest

from ffn.cli import main
from ffn.evaluation.errors import faults
from ffn.geometry import Box

from ..volumes import write

START = (10, -5, 0)


def painted():
    """Two bodies of 10 sections, which fill their boxes."""
    labels = np.zeros((12, 30, 30), np.uint32)
    labels[1:11, 4:14, 4:14], labels[1:11, 18:27, 18:27] = 7, 8
    return labels


@pytest.mark.parametrize(
    ("slices", "value", "kind", "found"),
    [
        (np.s_[2:4, 20:22, 5:8], 7, "a piece apart from the rest", (7, 12, (12, 15, 5))),
        (np.s_[5, 4:14, 4:14], 0, "missing in a section", (7, 100, (15, -1, 4))),
        (np.s_[0:2, 28:30, 20:30], 9, "only at the rim", (9, 40, (10, 23, 20))),
        (np.s_[5:7, 22:24, 22:24], 0, "a hole", (8, 8, (15, 17, 22))),
    ],
)
def test_a_planted_fault_is_found_with_its_place(slices, value, kind, found):
    labels = painted()
    assert faults(labels, Box.from_shape(labels.shape, START)) == []
    assert faults(labels[1:5], Box.from_shape((4, 30, 30), START)) == []  # a section has no inside
    labels[slices] = value
    of_kind = [each for each in faults(labels, Box.from_shape(labels.shape, START)) if each.kind == kind]
    assert [each[1:] for each in of_kind] == [found]


def test_ignored_voxels_are_no_body_and_fill_no_hole():
    labels = painted().astype(np.int64)
    labels[0], labels[5:7, 22:24, 22:24] = -1, -1
    assert faults(labels, Box.from_shape(labels.shape)) == []


def test_the_worst_are_printed_and_the_status_tells(tmp_path, capsys):
    whole, pieces, grey = painted(), painted(), np.random.default_rng(0).integers(1, 9, (5, 9, 9))
    pieces[1, 20, 1:3], pieces[2:9:2, 28, 2:20:2] = 7, 7
    for name, labels, status in (("whole", whole, "0"), ("pieces", pieces, "1"), ("grey", grey, "1")):
        with pytest.raises(SystemExit, match=status):
            main(["labels", "--check", write(tmp_path / f"{name}.zarr", labels)])
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].endswith("1,20,1") and "27 more" in lines[11] and "image" in lines[13]
    assert main(["labels", "--check", write(tmp_path / "empty.zarr", np.zeros_like(whole))]) == 2
