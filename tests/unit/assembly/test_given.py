"""Corrections by hand become pairs of supervoxels, or one clear error."""

import numpy as np
import pytest

from ffn.assembly.given import COLUMNS, Correction, CorrectionError, constraints_of, corrections_text, read_corrections
from ffn.io.open import open_volume

from ..volumes import write

HEAD = ",".join(COLUMNS) + "\n"


@pytest.fixture
def base(tmp_path):
    """Three segments along x, with gaps between them."""
    voxels = np.zeros((4, 6, 40), np.uint64)
    voxels[..., 2:10], voxels[..., 12:20], voxels[..., 30:] = 7, 2**63 + 5, 9
    with open_volume(write(tmp_path / "base.zarr", voxels, (10, -3, 100), (40.0, 10.0, 10.0))) as volume:
        yield volume


def written(path, *corrections):
    path.write_text(corrections_text(corrections))
    return path


def test_places_become_supervoxels(base, tmp_path):
    path = written(
        tmp_path / "c.csv",
        Correction("join", (11, 0, 105), (11, 0, 115)),
        Correction("separate", (12, -3, 131), (13, 2, 104)),
    )
    joined, apart = constraints_of(read_corrections(path), path, base)
    assert joined.tolist() == [[7, 2**63 + 5]] and apart.tolist() == [[9, 7]]
    assert joined.dtype == apart.dtype == np.uint64


def test_corrections_of_spreadsheets_at_places_beside_segments_are_read(base, tmp_path):
    path = written(tmp_path / "c.csv", Correction("join", (11, 0, 122), (11, 0, 127)))
    assert constraints_of(read_corrections(path), path, base).joined.tolist() == [[2**63 + 5, 9]]
    correction = Correction("join", (11, 0, 122), (11, 0, 127))
    path = written(tmp_path / "c.csv", correction)
    path.write_text(path.read_text(), encoding="utf-8-sig")
    assert read_corrections(path) == [correction]


@pytest.mark.parametrize(
    ("corrections", "message"),
    [
        ([("separate", (11, 0, 103), (12, 1, 108))], "supervoxel 7"),
        ([("join", (11, 0, 103), (11, 0, 131)), ("separate", (11, 0, 133), (11, 0, 104))], "104 separates 9 from 7"),
        ([("join", (11, 0, 103), (11, 0, 160))], "near 11,0,160"),
        ([("join", (99, 0, 103), (11, 0, 103))], "near 99,0,103"),
    ],
)
def test_what_cannot_be_done_is_one_error(base, tmp_path, corrections, message):
    path = written(tmp_path / "c.csv", *(Correction(*each) for each in corrections))
    with pytest.raises(CorrectionError, match=message):
        constraints_of(read_corrections(path), path, base)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'nothing'"),
        ("1,2,3\n", "'1,2,3'"),
        (HEAD + "split,1,2,3,4,5,6\n", "line 2 is 'split,1,2,3,4,5,6'"),
        (HEAD + "join,1,2,3,4,5,6\njoin,1,2,3\n", "line 3 is 'join,1,2,3'"),
        (HEAD + "join,1,2,3,4,5,x\n", "line 2 is"),
        (HEAD + "join,1,2,3,4,5,99999999999999999999\n", "line 2 is"),
    ],
)
def test_a_damaged_file_is_refused_by_line(tmp_path, text, message):
    (tmp_path / "c.csv").write_text(text)
    with pytest.raises(CorrectionError, match=message):
        read_corrections(tmp_path / "c.csv")


def test_more_corrections_than_hands_can_draw_are_refused(tmp_path, monkeypatch):
    lines = [Correction("join", (11, 0, 122), (11, 0, n)) for n in range(4)]
    monkeypatch.setattr("ffn.assembly.given.MAX_CORRECTIONS", 3)
    assert read_corrections(written(tmp_path / "c.csv", *lines[:3])) == lines[:3]
    (tmp_path / "c.csv").write_text(corrections_text(lines).replace("\n", "\n\n"))
    with pytest.raises(CorrectionError, match=" bytes .* 3 "):
        read_corrections(tmp_path / "c.csv")
