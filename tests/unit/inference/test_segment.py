"""What `ffn segment` decides without a network; tests/stages/test_segment.py runs the stage."""

import pytest

from ffn.cli import main
from ffn.config import ModelConfig, SegmentConfig
from ffn.errors import VolumeError
from ffn.geometry import Box
from ffn.inference.segment import RESERVED, segment
from ffn.inference.subvolume import fingerprint as of_job
from ffn.model.store import Model
from ffn.provenance import REVISIONS, revision

MODEL = Model(ModelConfig(depth=1, features=2), {}, {})
CHANGED = {
    "init_activation": 0.97,
    "seed_policy": "grid",
    "second_pass": True,
    "max_fovs": 9,
    "canvases": 2,
}


def fingerprint(model=MODEL, inputs=None, **options):
    return of_job(SegmentConfig(**options), model, inputs or {"voxels": "abc"})


@pytest.mark.parametrize("dataset", RESERVED)
def test_the_names_of_other_results_are_refused(dataset):
    with pytest.raises(VolumeError, match=f"'{dataset}' is another dataset of this file, expected a free name"):
        segment("raw.h5:raw", "model", [f"seg.h5:{dataset}"], SegmentConfig())
    with pytest.raises(VolumeError, match="seg.h5: expected NAME.zarr or FILE.h5:DATASET"):
        segment("raw.h5:raw", "model", ["seg.h5"], SegmentConfig())


@pytest.mark.parametrize("name", CHANGED)
def test_a_checkpoint_of_other_options_is_another_job(name):
    assert fingerprint() != fingerprint(**{name: CHANGED[name]})


def test_a_checkpoint_of_another_model_or_image_is_another_job():
    other = Model(MODEL.config.model_copy(update={"deltas_zyx": (8, 8, 7)}), {}, {})
    assert fingerprint() != fingerprint(other)
    assert fingerprint() != fingerprint(inputs={"voxels": "abd"})


def test_a_checkpoint_of_another_revision_is_another_job(monkeypatch):
    before = fingerprint()
    monkeypatch.setitem(REVISIONS, "segment", revision("segment") + 1)
    assert fingerprint() != before


def test_the_interval_of_checkpoints_and_threads_do_not_make_another_job():
    assert fingerprint() == fingerprint(checkpoint_seconds=1.0, threads=3)


WORDS = ["segment", "--image", "a.h5:raw", "--model", "model", "--out", "b.h5:seg"]


def test_options_reach_the_stage(monkeypatch):
    calls = []
    monkeypatch.setattr("ffn.inference.segment.segment", lambda *given: calls.append(given))
    assert main(WORDS) == 0
    folders = ["--stage-to", "$TMPDIR", "--machine", "chosen", "--normalization", "n.json"]
    assert main([*WORDS, "--box", "0:4,0:5,0:6", *folders, "--min-segment-size", "7"]) == 0
    (*paths, config, box, stage_to, machine, known), (*_, changed, small, near, chosen, given) = calls
    assert paths == ["a.h5:raw", "model", ["b.h5:seg"]]
    assert (config.min_segment_size, box, stage_to, machine) == (1000, None, None, None)
    assert (known.normalization, given.normalization) == (None, "n.json")
    assert (changed.min_segment_size, small, near, chosen) == (7, [Box((0, 0, 0), (4, 5, 6))], "$TMPDIR", "chosen")


def test_the_files_of_two_boxes_differ():
    with pytest.raises(VolumeError, match=r"--out: b\.h5 is given 2 times, expected a file for each box"):
        segment("a.h5:raw", "model", ["b.h5:seg", "c.h5:seg", "b.h5:other"], SegmentConfig())


def test_an_impossible_option_is_refused_before_the_stage(monkeypatch, capsys):
    monkeypatch.setattr("ffn.inference.segment.segment", lambda *given: 1 / 0)
    assert main([*WORDS, "--seed-policy", "points"]) == 2
    assert "seed_policy points needs a CSV file" in capsys.readouterr().err
