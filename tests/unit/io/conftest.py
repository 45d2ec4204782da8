"""A small HDF5 volume, and a bucket of S3 that moto emulates on this machine."""

import warnings

import pytest

from ...volumes import write_volume
from .volumes import PLACEMENT, VOXELS


@pytest.fixture
def spec(tmp_path):
    """Path and dataset of a volume that holds `VOXELS` at `PLACEMENT`."""
    return write_volume(f"{tmp_path}/raw.h5:raw", VOXELS, PLACEMENT)


@pytest.fixture(scope="session")
def s3_server():
    """Address of a store for S3 that is empty."""
    pytest.importorskip("moto")
    pytest.importorskip("flask_cors")  # of moto's extra `server`; the others are for other services
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from moto.server import ThreadedMotoServer

        server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        server.start()
    yield "http://{}:{}".format(*server.get_host_and_port())
    server.stop()


@pytest.fixture
def tissue(s3_server, monkeypatch):
    """The new private bucket ``tissue``, as its owner sees it; TensorStore has no credentials at first."""
    import boto3

    for name in ("AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    keys = {"aws_access_key_id": "owner", "aws_secret_access_key": "secret", "region_name": "us-east-1"}
    owner = boto3.client("s3", endpoint_url=s3_server, **keys)
    owner.create_bucket(Bucket="tissue")
    yield owner
    for item in owner.list_objects_v2(Bucket="tissue").get("Contents", []):
        owner.delete_object(Bucket="tissue", Key=item["Key"])
    owner.delete_bucket(Bucket="tissue")
