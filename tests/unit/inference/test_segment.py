"""What `ffn segment` decides without a network; tests/stages/test_segment.py runs the stage."""

import pytest

from ffn.cli import main
from ffn.config import SegmentConfig
from ffn.errors import VolumeError
from ffn.geometry import Box
from ffn.inference.inputs import SegmentInputs
from ffn.inference.segment import segment
from ffn.inference.subvolume import fingerprint as of_job
from ffn.provenance import REVISIONS, revision

CHANGED = {
    "init_activation": 0.97,
    "seed_order": "reversed",
    "second_pass": True,
    "max_fovs": 9,
    "canvases": 2,
}


def fingerprint(inputs=None, **options):
    return of_job(SegmentConfig(**options), inputs or {"volumes": "abc"})


@pytest.mark.parametrize("name", CHANGED)
def test_a_checkpoint_of_other_options_is_another_job(name):
    assert fingerprint() != fingerprint(**{name: CHANGED[name]})


def test_a_checkpoint_of_other_inputs_is_another_job():
    assert fingerprint() != fingerprint({"volumes": "abd"})


def test_a_checkpoint_of_another_revision_is_another_job(monkeypatch):
    before = fingerprint()
    monkeypatch.setitem(REVISIONS, "segment", revision("segment") + 1)
    assert fingerprint() != before


def test_the_interval_of_checkpoints_does_not_make_another_job():
    assert fingerprint() == fingerprint(checkpoint_seconds=1.0)


@pytest.mark.parametrize("out", ["seg.h5:segmentation", "seg.zarr/probability"])
def test_an_output_without_a_free_name_is_refused(out):
    with pytest.raises(VolumeError, match=out.split(":")[0]):
        segment(SegmentInputs("a.h5:raw", "model"), out, SegmentConfig())


WORDS = ["segment", "--image", "a.h5:raw", "--model", "model", "--out", "b.zarr"]


def test_options_reach_the_stage(monkeypatch):
    calls = []
    monkeypatch.setattr("ffn.inference.segment.segment", lambda *given: calls.append(given))
    assert main(WORDS) == 0
    folders = ["--stage-to", "$TMPDIR", "--machine", "chosen", "--normalization", "n.json"]
    assert main([*WORDS, "--box", "0:4,0:5,0:6", *folders, "--min-segment-um3", "7e-06"]) == 0
    plain, (inputs, _, changed, box, _) = calls
    assert plain == (SegmentInputs("a.h5:raw", "model"), "b.zarr", SegmentConfig(), None, None)
    assert inputs == SegmentInputs("a.h5:raw", "model", "n.json", machine="chosen", stage_to="$TMPDIR")
    assert (changed.min_segment_um3, box) == (7e-6, Box((0, 0, 0), (4, 5, 6)))
