"""`--stage-to`: training and segmenting from copies on a node's disk give the same bytes as from the shared folder."""

import hashlib
import shutil

import pytest

from ffn.cli import main

from .training_jobs import MODEL, command, succeed

STEPS = ["--num-workers", "1", "--batch-size", "2", "--max-steps", "12", "--log-steps", "6"]


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.slow
def test_training_and_segmenting_from_copies_gives_the_same(tubes, tmp_path, monkeypatch):
    shared = tmp_path / "shared"
    shutil.copytree(tubes, shared)
    monkeypatch.setenv("NODE_DISK", str(tmp_path / "disk"))
    staged = ["--stage-to", "$NODE_DISK"]

    succeed(command(shared, shared / "model", [*MODEL, *STEPS]))
    told = succeed(command(shared, tmp_path / "near", [*MODEL, *STEPS, *staged]))
    assert told.count("staged ") == 3, told  # records, image, labels
    assert digest(tmp_path / "near/weights.h5") == digest(shared / "model/weights.h5")

    told = succeed(command(shared, tmp_path / "again", [*MODEL, *STEPS, *staged]))
    assert "staged " not in told and "already in" in told

    segment = ["segment", "--image", f"{shared}/raw.h5:raw", "--model", f"{shared}/model", "--box", "5:25,4:36,12:52"]
    segment += ["--precision", "float32"]  # auto may differ each time
    for name, options in (("from-shared", []), ("from-copy", staged)):
        assert main([*segment, *options, "--out", f"{tmp_path}/{name}.h5:segmentation"]) == 0
    assert digest(tmp_path / "from-copy.h5") == digest(tmp_path / "from-shared.h5")
    assert len(list((tmp_path / "disk").rglob("raw.h5"))) == 1
