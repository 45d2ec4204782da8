"""kill -9 at random moments of segment, reconcile and agglomerate: a rerun goes on and ends with the same bytes."""

import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from ffn.geometry import Box
from ffn.io.hdf5_volume import create_volume, create_volumes
from ffn.io.volume import Placement

BOX = Box((0, 0, 0), (32, 40, 260))
LEFT, RIGHT = "0:32,0:40,0:150", "0:32,0:40,110:260"
NUM_KILLS = {"segment": 4, "reconcile": 2, "agglomerate": 4}


STARTS, PIECE = (4, 18), 20


def write_pieces(path):
    """Write both tubes in pieces, with every two neighbours as candidates."""
    labels, pairs = np.zeros(BOX.shape, np.uint64), []
    for tube, start in enumerate(STARTS):
        for number, x in enumerate(range(0, BOX.shape[2], PIECE)):
            segment_id = 100 * tube + number + 1
            labels[start : start + 10, start : start + 10, x : x + PIECE] = segment_id
            pairs.append((segment_id, segment_id + 1, 500))
    with create_volumes(path, {"segmentation": np.uint64}, Placement(BOX), {"overlaps": np.array(pairs)}) as writers:
        writers["segmentation"].write(BOX, labels)


def commands(folder):
    image, model = f"{folder}/raw.h5:raw", f"{folder}/model"
    segment = [
        "segment",
        "--image",
        image,
        "--model",
        model,
        "--min-segment-size",
        "50",
        "--checkpoint-seconds",
        "0.05",
    ]
    base = f"{folder}/base.h5:segmentation"
    inputs = ["--segmentation", f"{folder}/pieces.h5:segmentation", "--image", image, "--model", model]
    return {
        "right": [*segment, "--box", RIGHT, "--out", f"{folder}/right.h5:segmentation"],
        "segment": [*segment, "--box", LEFT, "--out", f"{folder}/left.h5:segmentation"],
        "reconcile": [
            "reconcile",
            f"{folder}/left.h5",
            f"{folder}/right.h5",
            "--min-overlap-voxels",
            "50",
            "--out",
            base,
        ],
        "agglomerate": [
            *["agglomerate", *inputs, "--out", f"{folder}/graph.csv"],
            *["--window-radius", "12", "12", "20", "--max-fovs", "none"],
        ],
    }


OUTPUTS = {"segment": "left.h5", "reconcile": "base.h5", "agglomerate": "graph.csv"}
# Where unfinished work lies, how many lines it has when there is some, and how the log says that it is continued.
UNFINISHED = {"segment": (".checkpoint", 0, "resuming from"), "agglomerate": (".partial", 3, "resuming after")}


def start(command):
    return subprocess.Popen([sys.executable, "-m", "ffn", *command], stderr=subprocess.PIPE, text=True)


def finish(command):
    """Run to the end; return how long it took, and the log."""
    begin = time.monotonic()
    process = start(command)
    log = process.communicate()[1]
    assert process.returncode == 0, log
    return time.monotonic() - begin, log


def kill(process):
    process.send_signal(signal.SIGKILL)
    process.communicate()


def kill_amid_work(command, unfinished, num_lines):
    """Start afresh, and kill when the first unfinished work is on disk."""
    unfinished.unlink(missing_ok=True)
    process = start(command)
    while process.poll() is None and not (unfinished.exists() and unfinished.read_bytes().count(b"\n") >= num_lines):
        time.sleep(0.005)
    kill(process)
    assert process.returncode == -signal.SIGKILL and unfinished.exists()


@pytest.mark.slow
def test_ten_kills_change_nothing(tmp_path, bright_model, tubes):
    with create_volume(f"{tmp_path}/raw.h5:raw", np.uint8, Placement(BOX, (10, 10, 10))) as writer:
        writer.write(BOX, tubes(BOX.shape, STARTS))
    write_pieces(tmp_path / "pieces.h5")
    steps, choice = commands(tmp_path), random.Random(7)
    finish(steps["right"])
    for stage, kills in NUM_KILLS.items():
        path = tmp_path / OUTPUTS[stage]
        seconds, _ = finish(steps[stage])
        undisturbed = path.read_bytes()
        path.unlink()
        suffix, num_lines, continued = UNFINISHED.get(stage, ("", 0, ""))
        for _ in range(kills - bool(suffix)):
            process = start(steps[stage])
            time.sleep(choice.uniform(0.3, 0.95) * seconds)
            kill(process)
            assert not path.exists() or path.read_bytes() == undisturbed, stage
        if suffix:
            kill_amid_work(steps[stage], path.with_name(path.name + suffix), num_lines)
        assert continued in finish(steps[stage])[1], stage
        assert path.read_bytes() == undisturbed, stage
        assert sorted(p.name for p in tmp_path.glob(f"{path.name}.*")) == [], stage
    assert len(undisturbed.splitlines()) == 2 + 2 * 12  # every piece and the next
