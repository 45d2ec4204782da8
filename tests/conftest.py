"""Fixtures for all tests: the real data, which is never part of the repository."""

import os
import warnings
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]


def pytest_collection_modifyitems(items):
    """Mark what needs real data, so that ``-m 'not fib25'`` leaves it out."""
    for item in items:
        if {"shared_fib25", "shared_checkpoint"} & set(getattr(item, "fixturenames", ())):
            item.add_marker("fib25")


@pytest.fixture(scope="session")
def cloud_volume():
    """Class that reads Neuroglancer volumes independently of our writer; its imports warn."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("cloudvolume").CloudVolume


@pytest.fixture(scope="session")
def shared_dir():
    """Folder of the real data: $FFN_SHARED, or `shared` beside the repository; skips without it."""
    folder = Path(os.environ.get("FFN_SHARED", REPOSITORY.parent / "shared"))
    if not (folder / "data").is_dir():
        pytest.skip(f"no real data in {folder}; FFN_SHARED may name another folder")
    return folder


@pytest.fixture(scope="session")
def shared_fib25(shared_dir):
    """Folder with the FIB-25 cube: `raw/`, `labels_z000-170.h5`, `labels_neuroproof_z000-170.h5`."""
    return _existing(shared_dir / "data/fib25")


@pytest.fixture(scope="session")
def shared_checkpoint(shared_dir):
    """Prefix of the published TF1 checkpoint."""
    prefix = shared_dir / "data/fib25_ffn_checkpoint/model.ckpt-27465036"
    _existing(prefix.with_name(prefix.name + ".index"))
    return prefix


def _existing(path):
    if not path.exists():
        pytest.skip(f"{path} is missing")
    return path
