"""The command line of `ffn reconcile`."""

from ffn.cli import main


def test_the_dataset_is_segmentation_unless_it_is_given(monkeypatch):
    calls = []
    monkeypatch.setattr("ffn.assembly.reconcile.reconcile", lambda *given: calls.append(given))
    assert main(["reconcile", "a.h5", "b.h5:other", "--out", "all.h5:s", "--min-overlap-voxels", "7"]) == 0
    ((specs, out, config),) = calls
    assert (specs, out) == (["a.h5:segmentation", "b.h5:other"], "all.h5:s")
    assert config.min_overlap_voxels == 7
