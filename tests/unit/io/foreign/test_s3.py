"""Amazon's rules of access, as moto emulates them on this machine: public, private, denied."""

import json

import pytest
import zarr

from ffn.io.foreign.locations import shared_context

from .readers import check, refuse, voxels

BUCKET = "tissue"
EVERYBODY = {"Principal": "*", "Action": ["s3:GetObject"], "Resource": f"arn:aws:s3:::{BUCKET}/*"}


@pytest.fixture
def bucket(tissue, tmp_path):
    """A private bucket with a volume, as its owner sees it; readers have no credentials at first."""
    shared_context.cache_clear()
    zarr.create_array(tmp_path / "raw.zarr", data=voxels(), chunks=(5, 6, 10), zarr_format=3)
    for path in (tmp_path / "raw.zarr").rglob("*"):
        if path.is_file():
            tissue.put_object(Bucket=BUCKET, Key=str(path.relative_to(tmp_path)), Body=path.read_bytes())
    return tissue


def decide(owner, effect):
    policy = {"Version": "2012-10-17", "Statement": [{"Effect": effect, **EVERYBODY}]}
    owner.put_bucket_policy(Bucket=BUCKET, Policy=json.dumps(policy))


def log_in(monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "reader")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    shared_context.cache_clear()  # a process looks for credentials once


def test_a_public_bucket_is_read_without_credentials(bucket):
    decide(bucket, "Allow")
    check(f"s3://{BUCKET}/raw.zarr")


def test_a_private_bucket_is_read_with_credentials_only(bucket, monkeypatch):
    spec = f"s3://{BUCKET}/raw.zarr"
    refuse(spec, f"{spec}: ", "AWS_PROFILE")
    log_in(monkeypatch)
    check(spec)


def test_a_folder_that_is_not_in_the_bucket_is_refused(bucket, monkeypatch):
    log_in(monkeypatch)
    refuse(f"s3://{BUCKET}/other.zarr", f"s3://{BUCKET}/other.zarr: ")
