"""From folders of TIFF slices to segments, in two commands and without an edit, with weights of ours."""

import os
import subprocess
import sys
from pathlib import Path

import h5py
import imageio.v3 as iio
import numpy as np
import pytest
import yaml

from ..small_run import ROOT
from ..unit.volumes import read


def snemi3d(data):
    """Return sections, labels and voxel size of a part of SNEMI3D at 12 nm."""
    with h5py.File(data / "snemi3d/snemi3d_z000-080.h5") as file:
        image, labels = (file[name][64:80, 256:384, 256:384] for name in ("raw", "labels"))
    return image.reshape(16, 64, 2, 64, 2).mean((2, 4)).astype("u1"), labels[:, ::2, ::2], "30 12 12"


def write(folder, sections):
    folder.mkdir()
    for z, section in enumerate(sections):
        iio.imwrite(folder / f"s{z:03d}.tif", section)


@pytest.mark.slow
def test_a_folder_of_slices_becomes_segments(shared_dir, tmp_path):
    """The tutorial does it with FIB-25, with a training, and to the end."""
    if not (shared_dir / "data/snemi3d").is_dir():
        pytest.skip(f"snemi3d is not in {shared_dir}")
    image, labels, size = snemi3d(shared_dir / "data")
    write(tmp_path / "image", image)
    write(tmp_path / "labels", labels)
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for words in (
        f"new first.yaml --image image --labels labels --voxel-size {size} --hours 0",
        "run first.yaml --until reconcile",
    ):
        done = subprocess.run(
            [sys.executable, "-m", "ffn", *words.split()], cwd=tmp_path, env=variables, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    run = yaml.safe_load((tmp_path / "results/first/config.yaml").read_text())
    assert run["volumes"]["first"]["clahe_tile"] == 128, "as the weights were trained"
    labels = read(tmp_path / "results/first/segmentation/first/segmentation.zarr")
    assert np.unique(labels[labels > 0], return_counts=True)[1].max() > 2000
