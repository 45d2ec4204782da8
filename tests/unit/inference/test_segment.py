"""What `ffn segment` decides without a network; tests/stages/test_segment.py runs the stage."""

from ffn.cli import main
from ffn.config import SegmentConfig
from ffn.geometry import Box
from ffn.inference.inputs import SegmentInputs
from ffn.inference.subvolume import fingerprint as of_job
from ffn.provenance import REVISIONS, revision


def fingerprint(inputs=None, **options):
    return of_job(SegmentConfig(**options), inputs or {"volumes": "abc"})


def test_other_options_inputs_or_another_revision_make_another_job_but_not_the_interval_of_checkpoints(monkeypatch):
    before = fingerprint()
    others = {"init_activation": 0.97, "seed_order": "reversed", "second_pass": True, "max_fovs": 9, "canvases": 2}
    found = [fingerprint(**{name: value}) for name, value in others.items()]
    assert before not in [*found, fingerprint({"volumes": "abd"})] and before == fingerprint(checkpoint_seconds=1.0)
    monkeypatch.setitem(REVISIONS, "segment", revision("segment") + 1)
    assert fingerprint() != before


WORDS = ["segment", "--image", "a.h5:raw", "--model", "model", "--out", "b.zarr"]


def test_options_reach_the_stage(monkeypatch):
    calls = []
    monkeypatch.setattr("ffn.inference.segment.segment", lambda *given: calls.append(given))
    assert main(WORDS) == 0
    folders = ["--machine", "chosen", "--normalization", "n.json"]
    assert main([*WORDS, "--box", "0:4,0:5,0:6", *folders, "--min-segment-um3", "7e-06"]) == 0
    plain, (inputs, _, changed, box, _) = calls
    assert plain == (SegmentInputs("a.h5:raw", "model"), "b.zarr", SegmentConfig(), None, None)
    assert inputs == SegmentInputs("a.h5:raw", "model", "n.json", machine="chosen")
    assert (changed.min_segment_um3, box) == (7e-6, Box((0, 0, 0), (4, 5, 6)))
