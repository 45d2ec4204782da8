"""From folders of TIFF slices to segments on the screen, in two commands and without an edit, with weights of ours."""

import csv
import os
import subprocess
import sys
from pathlib import Path

import h5py
import imageio.v3 as iio
import pytest
import yaml

from ..small_run import ROOT


def snemi3d(data):
    """Return sections, labels and voxel size of a part of SNEMI3D at 12 nm."""
    with h5py.File(data / "snemi3d/snemi3d_z000-080.h5") as file:
        image, labels = (file[name][64:80, 256:448, 256:448] for name in ("raw", "labels"))
    return image.reshape(16, 96, 2, 96, 2).mean((2, 4)).astype("u1"), labels[:, ::2, ::2], "30 12 12"


def fib25(data):
    """Return sections, labels and voxel size of a part of FIB-25."""
    files = sorted((data / "fib25/raw").iterdir())[120:148]
    with h5py.File(data / "fib25/labels_z000-170.h5") as file:
        labels = file["stack"][120:148, :72, :72]
    return [iio.imread(file)[:72, :72] for file in files], labels.astype("u2"), "10 10 10"


def write(folder, sections):
    folder.mkdir()
    for z, section in enumerate(sections):
        iio.imwrite(folder / f"s{z:03d}.tif", section)


@pytest.mark.slow
@pytest.mark.parametrize("tissue", [snemi3d, fib25])
def test_a_folder_of_slices_becomes_segments_to_look_at(tissue, shared_dir, tmp_path):
    if not (shared_dir / "data" / tissue.__name__).is_dir():
        pytest.skip(f"{tissue.__name__} is not in {shared_dir}")
    image, labels, size = tissue(shared_dir / "data")
    write(tmp_path / "image", image)
    write(tmp_path / "labels", labels)
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for words in (
        f"new first.yaml --image image --labels labels --voxel-size {size} --hours 0",
        "run first.yaml --until export",
    ):
        done = subprocess.run(
            [sys.executable, "-m", "ffn", *words.split()], cwd=tmp_path, env=variables, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    run = yaml.safe_load((tmp_path / "results/first/config.yaml").read_text())
    assert (run["volumes"]["first"]["clahe_tile"] == 128) is (tissue is snemi3d), "as the weights were trained"
    with open(tmp_path / "results/first/precomputed/first/segmentation.csv") as file:
        assert max(int(row["voxels"]) for row in csv.DictReader(file)) > 2000
    assert list((tmp_path / "results/first/precomputed/first/links").glob("*.json"))
