"""kill -9 of an export: the same command resumes, keeps finished blocks, and ends with the same bytes."""

import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from ffn.cli import main
from ffn.geometry import Box
from ffn.io.volume import Placement

from ..jobs import files
from ..pauses import Pause
from ..volumes import write_volume

# Boxes of random ids make poor neurons: no surfaces and centre lines of them.
NUM_THREADS = 2
VOLUMES_ONLY = ["--threads", f"{NUM_THREADS}", "--min-mesh-voxels", "1000000000"]
BOX = Box((5, -3, 40), (5 + 150, -3 + 260, 40 + 300))


def command(folder, out):
    sources = ["--image", f"{folder}/raw.h5:data", "--segmentation", f"{folder}/seg.h5:data"]
    return ["export", *sources, *VOLUMES_ONLY, "--out", str(out)]


def shards(folder):
    return {str(path.relative_to(folder)): path.stat().st_mtime_ns for path in folder.rglob("*.shard")}


@pytest.mark.slow
def test_a_killed_export_resumes(tmp_path):
    rng = np.random.default_rng(0)
    labels = rng.integers(1, 40, [-(-n // 30) for n in BOX.shape], np.uint16)
    labels = labels.repeat(30, 0).repeat(30, 1).repeat(30, 2)[tuple(slice(n) for n in BOX.shape)]
    for name, voxels in (("raw", rng.integers(0, 256, BOX.shape, np.uint8)), ("seg", labels)):
        write_volume(f"{tmp_path}/{name}.h5:data", voxels, Placement(BOX, (30.0, 10.0, 10.0)))
    out, at_once = tmp_path / "out", tmp_path / "at once"
    assert main(command(tmp_path, at_once)) == 0

    in_mips = Pause("export", "ffn.viewing.precomputed:Layer.downsample_shard", calls=2)
    killed = [sys.executable, "-m", "ffn", *command(tmp_path, out)]
    process = subprocess.Popen(killed, env={**os.environ, **in_mips.variables()})
    in_mips.wait(process)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    before = shards(out)
    assert NUM_THREADS < len(before) < len(shards(at_once)) and not (out / "neuroglancer.json").exists()

    assert main(command(tmp_path, out)) == 0
    again = before.items() - shards(out).items()
    assert len(again) <= NUM_THREADS, "more than the shards in flight were written again"
    assert files(out) == files(at_once)
