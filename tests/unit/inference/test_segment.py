"""What `ffn segment` decides without a network; tests/stages/test_segment.py runs the stage."""

from ffn.config import SegmentConfig
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
