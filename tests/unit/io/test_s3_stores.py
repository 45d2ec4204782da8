"""Jobs write stores to an object store: what they leave there is what they leave in a folder."""

import json

import numpy as np
import pytest

from ffn.cli import main
from ffn.errors import VolumeError
from ffn.geometry import Box
from ffn.io.open import open_volume
from ffn.io.volume import Placement
from ffn.sampling import membrane

from ...jobs import Killed, options
from ...volumes import write_volume

BOX = Box((3, 0, 0), (35, 64, 200))


@pytest.fixture
def image(tissue, monkeypatch):
    """An image in a bucket that this process may write to; a shard has 64 voxels along x."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "owner")
    monkeypatch.setattr("ffn.io.shards.MAX_SHARD", 64)
    voxels = np.random.default_rng(0).integers(0, 255, BOX.shape).astype(np.uint8)
    return write_volume("s3://tissue/raw.zarr", voxels, Placement(BOX, (20.0, 10.0, 10.0)))


def in_bucket(owner, store):
    keys = [item["Key"] for item in owner.list_objects_v2(Bucket="tissue")["Contents"] if item["Key"].startswith(store)]
    return {key[len(store) + 1 :]: owner.get_object(Bucket="tissue", Key=key)["Body"].read() for key in keys}


def test_membrane_writes_to_s3_and_a_killed_job_goes_on_there(tissue, image, tmp_path, monkeypatch):
    command = ["membrane", "--image", image, "--blur", "20"]
    assert main([*command, "--out", f"{tmp_path}/m.zarr"]) == 0
    here = {str(path.relative_to(tmp_path / "m.zarr")): path for path in (tmp_path / "m.zarr").rglob("*")}
    block, calls = membrane.membrane_block, []

    def counted(*arguments):
        calls.append(arguments)
        if len(calls) == 2:
            raise Killed
        return block(*arguments)

    monkeypatch.setattr(membrane, "membrane_block", counted)
    job = [*command, "--out", "s3://tissue/m.zarr"]
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Killed):
        main([*job, *options("1-of-2")])
    with pytest.raises(VolumeError, match="m.zarr/edges"), open_volume("s3://tissue/m.zarr/edges"):
        pytest.fail("it is not finished")
    for part in ("2-of-2", "1-of-2", ""):
        assert main([*job, *options(part)]) == 0
    assert len(calls) == 4 + 1, "only the block in flight is made again"
    assert in_bucket(tissue, "m.zarr") == {name: path.read_bytes() for name, path in here.items() if path.is_file()}


def deny(owner, action, keys):
    denied = {"Effect": "Deny", "Principal": "*", "Action": [action], "Resource": f"arn:aws:s3:::tissue/{keys}"}
    owner.put_bucket_policy(Bucket="tissue", Policy=json.dumps({"Version": "2012-10-17", "Statement": [denied]}))


def test_who_may_not_write_learns_the_bucket_the_rights_and_what_to_set(tissue, image, capsys):
    deny(tissue, "s3:PutObject", "*")
    assert main(["membrane", "--image", image, "--blur", "20", "--out", "s3://tissue/m.zarr"]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert "s3://tissue/m.zarr/edges/0/zarr.json: " in said and "AWS_PROFILE" in said
