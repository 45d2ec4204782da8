"""Amazon's rules of access, as moto emulates them on this machine: public, private, denied."""

import json
import warnings

import pytest
import zarr

from .readers import check, refuse, voxels

BUCKET = "tissue"
EVERYBODY = {"Principal": "*", "Action": ["s3:GetObject"], "Resource": f"arn:aws:s3:::{BUCKET}/*"}


@pytest.fixture(scope="module")
def server():
    """A store for S3 that is empty."""
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
def bucket(server, tmp_path, monkeypatch):
    """A new private bucket with a volume, as its owner sees it; readers have no credentials at first."""
    import boto3

    for name in ("AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ENDPOINT_URL", server)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    keys = {"aws_access_key_id": "owner", "aws_secret_access_key": "secret", "region_name": "us-east-1"}
    owner = boto3.client("s3", endpoint_url=server, **keys)
    zarr.create_array(tmp_path / "raw.zarr", data=voxels(), chunks=(5, 6, 10), zarr_format=3)
    owner.create_bucket(Bucket=BUCKET)
    for path in (tmp_path / "raw.zarr").rglob("*"):
        if path.is_file():
            owner.put_object(Bucket=BUCKET, Key=str(path.relative_to(tmp_path)), Body=path.read_bytes())
    yield owner
    for item in owner.list_objects_v2(Bucket=BUCKET)["Contents"]:
        owner.delete_object(Bucket=BUCKET, Key=item["Key"])
    owner.delete_bucket(Bucket=BUCKET)


def decide(owner, effect):
    policy = {"Version": "2012-10-17", "Statement": [{"Effect": effect, **EVERYBODY}]}
    owner.put_bucket_policy(Bucket=BUCKET, Policy=json.dumps(policy))


def log_in(monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "reader")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")


def test_a_public_bucket_is_read_without_credentials(bucket):
    decide(bucket, "Allow")
    check(f"s3://{BUCKET}/raw.zarr")


def test_a_private_bucket_is_read_with_credentials_only(bucket, monkeypatch):
    spec = f"s3://{BUCKET}/raw.zarr"
    refuse(spec, f"{spec}: bucket '{BUCKET}' refuses to read 'raw.zarr' without credentials and with those here")
    log_in(monkeypatch)
    check(spec)


def test_who_is_denied_learns_the_bucket_and_the_right(bucket, monkeypatch):
    decide(bucket, "Deny")
    log_in(monkeypatch)
    spec = f"s3://{BUCKET}/raw.zarr"
    refuse(spec, f"{spec}: bucket '{BUCKET}' refuses to read 'raw.zarr'", "s3:GetObject", "Set AWS_PROFILE")


def test_a_folder_that_is_not_in_the_bucket_is_refused(bucket, monkeypatch):
    log_in(monkeypatch)
    refuse(f"s3://{BUCKET}/other.zarr", f"s3://{BUCKET}/other.zarr: cannot be opened", "expected one array or image")
