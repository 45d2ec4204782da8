"""kill -9 of segment, reconcile and agglomerate at the worst points: a rerun resumes and ends with the same bytes."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ffn.cli import main
from ffn.geometry import Box
from ffn.io.store_names import MAIN, tracked_file
from ffn.io.volume import Placement

from ..engines import LACKING
from ..jobs import files
from ..pauses import Pause
from ..volumes import create_volumes, write_volume

pytestmark = pytest.mark.slow

BOX = Box((0, 0, 0), (33, 41, 80))
LEFT, RIGHT = "0:33,0:41,0:50", "0:33,0:41,30:80"
STARTS, PIECE = (4, 18), 20
TILE = (33, 41, 41)  # of subvolumes and windows alike, so JAX compiles one program for both

ENGINE = "openvino" if LACKING["kernels"] else "kernels"  # which loads faster
SAVED = "ffn.inference.subvolume:CheckpointFile.save"
FINISHED = "ffn.io.store:Store.finish"
WRITTEN, JUDGED = "ffn.io.store:ShardWriter.write", "ffn.assembly.merge_graph:MergeEdge.row"
# By stage: its output, the points at which one attempt after the other is killed, the unfinished file on disk after the
# first kill, and how the log says that it was continued.
STAGES = {
    "segment": (
        "left.zarr",
        [Pause("segment", SAVED, calls=3), Pause("left.zarr", WRITTEN)],
        *(".checkpoint", "resuming"),
    ),
    "reconcile": ("base.zarr", [Pause("reconcile", WRITTEN), Pause("reconcile", FINISHED, before=True)], None, ""),
    "agglomerate": ("graph.csv", [Pause("agglomerate", JUDGED, calls=3)], ".partial", "after 2 decision points"),
}


def write_pieces(path):
    """Write both tubes in pieces, with every two neighbours as candidates."""
    labels, pairs = np.zeros(BOX.shape, np.uint64), []
    for tube, start in enumerate(STARTS):
        for number, x in enumerate(range(0, BOX.shape[2], PIECE)):
            segment_id = 100 * tube + number + 1
            labels[start : start + 10, start : start + 10, x : x + PIECE] = segment_id
            cell = np.add(BOX.start, (start, start, x + PIECE)) // 24 * 24
            pairs.append((segment_id, segment_id + 1, *cell.tolist(), 500))
    with create_volumes(path, {MAIN: np.uint64}, Placement(BOX), {"overlaps": np.array(pairs)}) as writers:
        writers[MAIN].write(BOX, labels)


def commands(folder):
    sources = f"--image {folder}/raw.h5:raw --model {folder}/model --precision float32 --engine {ENGINE}"
    segment = f"segment {sources} --min-segment-um3 5e-05 --checkpoint-seconds 0.02"
    window = f"--window-radius {' '.join(str(n // 2) for n in TILE)} --max-fovs 40"
    return {
        "right": f"{segment} --box {RIGHT} --out {folder}/right.zarr",
        "segment": f"{segment} --box {LEFT} --out {folder}/left.zarr",
        "reconcile": f"reconcile {folder}/left.zarr {folder}/right.zarr --min-overlap-voxels 50 "
        f"--min-component-um3 5e-05 --out {folder}/base.zarr",
        "agglomerate": f"agglomerate --segmentation {folder}/pieces.zarr {sources} {window} --out {folder}/graph.csv",
    }


@pytest.fixture
def steps(tmp_path, bright_model, tubes):
    """Commands by stage, with their inputs."""
    write_volume(f"{tmp_path}/raw.h5:raw", tubes(BOX.shape, STARTS), Placement(BOX, (10, 10, 10)))
    write_pieces(tmp_path / "pieces.zarr")
    return {name: command.split() for name, command in commands(tmp_path).items()}


def content(path):
    """Return the files of a store, or the file."""
    return files(path) if path.is_dir() else {path.name: path.read_bytes()}


def remove(path):
    """Remove a store or a file, if it is there."""
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def kill_at(pause, command, meanwhile=lambda: None):
    process = subprocess.Popen([sys.executable, "-m", "ffn", *command], env={**os.environ, **pause.variables()})
    pause.wait(process)
    meanwhile()
    process.kill()
    assert process.wait() == -signal.SIGKILL


def written(folder):
    """Return all files but checkpoints."""
    return {name: content for name, content in files(folder).items() if not name.endswith(".checkpoint")}


@pytest.mark.parametrize("stage", STAGES)
def test_kills_change_nothing(stage, steps, tmp_path, caplog, capsys):
    name, pauses, unfinished, continued = STAGES[stage]
    path = tmp_path / name
    if stage == "reconcile":
        assert main(steps["right"]) == main(steps["segment"]) == 0
    assert main(steps[stage]) == 0
    finished, undisturbed = Path(tracked_file(str(path))), content(path)
    remove(path)

    def refused():
        """One removed the files of the other, which ended well with a store that lacked a shard."""
        before = written(tmp_path)
        assert main(steps[stage]) == 2
        assert str(path) in capsys.readouterr().err.splitlines()[-1] and written(tmp_path) == before

    for pause in pauses:
        kill_at(pause, steps[stage], refused if pause is pauses[-1] and stage == "segment" else lambda: None)
        assert not finished.exists()
        assert unfinished is None or path.with_name(name + unfinished).exists()
    with caplog.at_level("INFO"):
        assert main(steps[stage]) == 0
    assert continued in caplog.text
    assert content(path) == undisturbed
    assert sorted(p.name for p in tmp_path.glob(f"*{name}?*")) == []
    if stage == "agglomerate":
        num_pairs = 2 * (BOX.shape[2] // PIECE - 1)  # every piece and the next
        assert len(undisturbed["graph.csv"].splitlines()) == 2 + num_pairs


def test_windows_at_once_are_judged_again_after_a_kill(steps, tmp_path, caplog):
    """Those behind the first that was not judged yet are grown again; the graph is in order."""
    pytest.importorskip("jax")
    command = [*steps["agglomerate"], "--engine", "jax", "--canvases", "2"]
    assert main(command) == 0
    graph = tmp_path / "graph.csv"
    undisturbed = graph.read_bytes()
    graph.unlink()
    kill_at(Pause("agglomerate", JUDGED, calls=3), command)
    with caplog.at_level("INFO"):
        assert main(command) == 0
    assert "resuming after 2 " in caplog.text and graph.read_bytes() == undisturbed


def test_a_list_on_canvases_is_finished_after_kills(steps, tmp_path, caplog):
    """As the workflow calls it where a profile has GPUs; Snakemake sees the record of the job alone."""
    pytest.importorskip("jax")
    tiles = f"--size {' '.join(map(str, TILE))} --overlap 8 8 16 --job 1-of-1"
    options = f"--engine jax --canvases 2 --box {BOX} {tiles}"
    start = steps["segment"][: steps["segment"].index("--box")]

    def command(name, seconds="600"):
        record = ["--job-record", f"{tmp_path}/{name}.json", "--checkpoint-seconds", seconds]
        return [*start, *options.split(), *record, "--out", f"{tmp_path}/{name}/"]

    assert main(command("whole")) == 0
    for pause in (Pause("segment", SAVED, calls=4), Pause("segment", "ffn.inference.subvolume:SubvolumeFlood.write")):
        kill_at(pause, command("killed", "0.05"))
        assert not (tmp_path / "killed.json").exists()
    with caplog.at_level("INFO"):
        assert main(command("killed")) == 0
    assert "resuming" in caplog.text and len(list((tmp_path / "whole").glob("*.zarr"))) == 3
    killed, whole = (files(tmp_path / name) for name in ("killed", "whole"))
    stores = [name for name in whole if ".zarr/" in name]
    assert stores and all(killed[name] == whole[name] for name in stores)
    assert (tmp_path / "killed.json").exists() and not list(tmp_path.rglob("*.checkpoint"))
