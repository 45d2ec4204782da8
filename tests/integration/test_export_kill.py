"""kill -9 of an export: the same command goes on, keeps the files that are whole, and ends with the same bytes."""

import signal
import subprocess
import sys
import time

import numpy as np

from ffn.geometry import Box
from ffn.io.hdf5_volume import create_volume
from ffn.io.volume import Placement

# Boxes of random ids make poor neurons: no surfaces and centre lines of them.
VOLUMES_ONLY = ["--threads", "2", "--skeleton-mip", "none", "--min-mesh-voxels", "1000000000"]
BOX = Box((5, -3, 40), (5 + 150, -3 + 260, 40 + 300))


def command(folder, out):
    sources = ["--image", f"{folder}/raw.h5:data", "--segmentation", f"{folder}/seg.h5:data"]
    return [sys.executable, "-m", "ffn", "export", *sources, *VOLUMES_ONLY, "--out", str(out)]


def shards(folder):
    return {str(path.relative_to(folder)): path.stat().st_mtime_ns for path in folder.rglob("*.shard")}


def content(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_killed_export_goes_on(tmp_path):
    rng = np.random.default_rng(0)
    labels = rng.integers(1, 40, [-(-n // 30) for n in BOX.shape], np.uint16)
    labels = labels.repeat(30, 0).repeat(30, 1).repeat(30, 2)[tuple(slice(n) for n in BOX.shape)]
    for name, voxels in (("raw", rng.integers(0, 256, BOX.shape, np.uint8)), ("seg", labels)):
        with create_volume(f"{tmp_path}/{name}.h5:data", voxels.dtype, Placement(BOX, (30.0, 10.0, 10.0))) as writer:
            writer.write(BOX, voxels)

    process = subprocess.Popen(command(tmp_path, tmp_path / "out"), stderr=subprocess.DEVNULL)
    partial = tmp_path / ".out.partial"
    while not (partial / "segmentation").is_dir() or not shards(partial / "segmentation"):
        assert process.poll() is None, "the export ended before it could be killed"
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = shards(partial)
    assert before and not (tmp_path / "out").exists()

    done = subprocess.run(command(tmp_path, tmp_path / "out"), capture_output=True, text=True, timeout=200)
    assert done.returncode == 0 and "resuming an interrupted export" in done.stderr, done.stderr
    assert before.items() <= shards(tmp_path / "out").items(), "a whole shard was written again"
    assert not partial.exists()
    subprocess.run(command(tmp_path, tmp_path / "at once"), check=True, capture_output=True, timeout=200)
    assert content(tmp_path / "out") == content(tmp_path / "at once")
