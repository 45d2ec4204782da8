"""kill -9 of a flood on one GPU: another process ends with the same bytes; CPUs are in tests/stages."""

import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from ffn.config import ModelConfig
from ffn.geometry import Box
from ffn.io.volume import Placement
from ffn.model.store import save_model

from ....jobs import files
from ....pauses import Pause
from ....volumes import write_volume
from ...networks import follower

pytestmark = [pytest.mark.slow, pytest.mark.gpu]

CONFIG = ModelConfig(
    depth=3, features=8, fov_size_zyx=(9, 11, 13), deltas_zyx=(2, 3, 3), image_mean=128, image_stddev=40
)
BOX = Box((0, 0, 0), (20, 36, 40))
CUT = "--size 20 36 26 --overlap 9 11 13 --canvases 2 --min-segment-um3 0.00005 --max-fovs 30 --checkpoint-seconds 0.02"


@pytest.mark.usefixtures("gpu")
def test_a_killed_flood_ends_with_the_same_bytes(tmp_path, capfd):
    save_model(str(tmp_path / "model"), follower(CONFIG))
    raw = np.random.default_rng(0).normal(128, 60, BOX.shape).clip(0, 255).astype(np.uint8)
    write_volume(f"{tmp_path}/raw.h5:raw", raw, Placement(BOX, (10, 10, 10)))
    kind = f"--engine jax --precision float16 --machine {tmp_path}/machine"
    sources = f"segment --image {tmp_path}/raw.h5:raw --model {tmp_path}/model {kind} {CUT}".split()
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    for name in ("JAX_COMPILATION_CACHE_DIR", "JAX_PLATFORMS"):
        variables.pop(name, None)

    def started(out, **more):
        command = [sys.executable, "-m", "ffn", *sources, "--out", f"{tmp_path}/{out}/"]
        return subprocess.Popen(command, env={**variables, **more})

    assert started("whole").wait() == 0
    pause = Pause("killed", "ffn.inference.subvolume:CheckpointFile.save", calls=3)
    process = started("killed", **pause.variables())
    pause.wait(process)
    process.kill()
    assert process.wait() == -signal.SIGKILL and list((tmp_path / "killed").glob("*.checkpoint"))
    assert started("killed").wait() == 0 and "resuming from" in capfd.readouterr().err
    assert files(tmp_path / "whole") == files(tmp_path / "killed")
    assert (tmp_path / "machine" / "programs").is_dir()
