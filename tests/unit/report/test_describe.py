"""Descriptions of the files of the pipeline."""

import json
import subprocess
import sys

import numpy as np
import pytest
import yaml

from ffn.cli import main
from ffn.config import ModelConfig
from ffn.evaluation.config import EvaluateConfig
from ffn.evaluation.evaluate import Inputs, evaluate
from ffn.geometry import Box
from ffn.io.volume import Placement
from ffn.model.network import weight_shapes
from ffn.model.store import Model, save_model
from ffn.report.describe import describe, render
from ffn.sampling.config import CoordinatesConfig, RecordsConfig
from ffn.sampling.coordinates import coordinates
from ffn.sampling.records import records
from ffn.training.checkpoint import Checkpoint, CheckpointFolder
from ffn.training.parallel.process_group import ProcessGroup

from ...volumes import create_volumes, write_volume
from ..io.foreign.test_chunked import create_store
from ..volumes import write

SHAPE = (8, 16, 32)
PLACEMENT = Placement(Box.from_shape(SHAPE, (1, 2, -3)), (40.0, 4.0, 4.5), {"stage": "test", "config": {"a": 1}})
CONFIG = ModelConfig(depth=2, features=3, fov_size_zyx=(5, 7, 9), deltas_zyx=(1, 2, 3), image_mean=128, image_stddev=33)


def classes():
    return np.random.default_rng(3).integers(1, 4, SHAPE).astype(np.uint8)


def write_coordinates(folder):
    spec = write_volume(f"{folder}/partitions.h5:partitions", classes(), PLACEMENT)
    coordinates(spec, None, folder / "coordinates.h5", CoordinatesConfig(margin_zyx=(1, 1, 1)))
    return str(folder / "coordinates.h5")


def write_records(folder):
    config = RecordsConfig(num_shards=2, max_records=60)
    records({"demo": write_coordinates(folder)}, folder / "records", config)
    return folder / "records"


def write_model(folder):
    weights = {name: np.ones(shape, np.float32) for name, shape in weight_shapes(CONFIG).items()}
    save_model(folder, Model(CONFIG, weights, {"stage": "train"}))
    return folder


def write_scores(folder, out):
    labels = np.zeros(SHAPE, np.uint64)
    labels[:, :7], labels[:, 9:] = 5, 6
    spec = write_volume(f"{folder}/labels.h5:labels", labels, PLACEMENT)
    evaluate(Inputs(spec, spec), out, EvaluateConfig())


def show(capsys, *words):
    """Return the JSON that the command line prints."""
    assert main(["info", "--json", *map(str, words)]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_volume(tmp_path, capsys):
    spec = write_volume(f"{tmp_path}/raw.h5:raw", classes(), PLACEMENT)
    expected = {
        "path": spec,
        "kind": "volume",
        "shape": [8, 16, 32],
        "dtype": "uint8",
        "voxel_size": [40, 4, 4.5],
        "extent": "0.32 × 0.064 × 0.144 µm (z, y, x)",
        "offset": [1, 2, -3],
        "box": "1:9,2:18,-3:29",
        "provenance": {"stage": "test", "config": {"a": 1}},
    }
    assert show(capsys, spec) == expected
    alone = show(capsys, tmp_path / "raw.h5")
    assert alone | {"path": spec} == expected | {"name": "raw", "tables": {}}


@pytest.mark.parametrize("name", ["s.h5", "s.zarr"])
def test_a_file_of_several_volumes(tmp_path, capsys, name):
    dtypes = {"segmentation": "uint64", "probabilities": "uint8"}
    with create_volumes(tmp_path / name, dtypes, PLACEMENT, {"origins": np.zeros((4, 5), np.int64)}):
        pass
    found = show(capsys, tmp_path / name)
    assert found["kind"] == "volumes"
    assert {name: volume["dtype"] for name, volume in found["volumes"].items()} == dtypes
    assert found["tables"] == {"origins": "(4, 5) int64"}


def test_coordinates_are_tables_with_attributes(tmp_path, capsys):
    found = show(capsys, write_coordinates(tmp_path))
    inner = classes()[1:-1, 1:-1, 1:-1]
    assert found["kind"] == "arrays"
    assert found["tables"] == {f"partitions/{p}": f"({(inner == p).sum()}, 3) int32" for p in (1, 2, 3)}
    assert found["attributes"]["counts"]["eligible"] == inner.size
    assert found["attributes"]["provenance"]["stage"] == "coordinates"


def test_records_and_models_are_described(tmp_path, capsys):
    found = show(capsys, write_records(tmp_path))
    assert found["kind"] == "records"
    assert found["num_records"] == sum(shard["num_records"] for shard in found["shards"]) == 60
    assert len(found["shards"]) == 2
    assert found["provenance"]["stage"] == "records"
    found = show(capsys, write_model(tmp_path / "model"))
    assert ModelConfig(**found["config"]) == CONFIG
    assert found["num_weights"] == sum(np.prod(shape) for shape in weight_shapes(CONFIG).values())
    assert found["provenance"] == {"stage": "train"}


def test_a_trained_model_has_its_progress_and_scores(tmp_path, capsys):
    folder = write_model(tmp_path / "model")
    (folder / "metrics.csv").write_text("step,loss,f1,later\n50,0.5,0.1,1\n100,0.25,0.2,1\n15")
    assert show(capsys, folder)["last"] == {"step": 100, "loss": 0.25, "f1": 0.2}
    (folder / "validation.csv").write_text("step,loss,f1\n0,1,nan\n50,1,0.5\n100,1,0.5\n150,1,0.25\n")
    (folder / "checkpoints/step-00000100").mkdir(parents=True)
    (folder / "model.yaml").unlink()  # the training is still running
    found = show(capsys, folder)
    assert found["kind"] == "training" and found["best_validation"] == {"step": 100, "loss": 1, "f1": 0.5}
    assert found["checkpoints"] == ["step-00000100"]


def test_a_checkpoint(tmp_path, capsys):
    folder = CheckpointFolder(tmp_path, {"model": CONFIG.model_dump(mode="json"), "version": "9"}, ProcessGroup(), 3)
    folder.save(Checkpoint(12, {"a": np.ones(2)}, {"lanes/0": {"position": np.zeros(3)}}))
    path = tmp_path / "step-00000012"
    found = show(capsys, path)
    assert (found["kind"], found["step"]) == ("checkpoint", 12)
    assert ModelConfig(**found["fingerprint"]["model"]) == CONFIG and found["fingerprint"]["version"] == "9"
    (path / "parts.h5").write_bytes(b"")
    assert main(["info", str(path)]) == 2
    assert "parts.h5" in capsys.readouterr().err


def test_a_run_shows_stages_and_scores(tmp_path, capsys):
    run = tmp_path / "results/demo"
    write_model(run / "model")
    (run / "volumes/demo").mkdir(parents=True)
    write(run / "volumes/demo/raw.zarr", classes())
    (run / "evaluation").mkdir()
    write_scores(tmp_path, run / "evaluation/demo.json")
    found = show(capsys, run)
    assert found["kind"] == "run"
    assert found["stages"] == {"ingest": 1, "train": 1, "evaluate": 1}
    assert found["scores"]["demo"]["scores"]["foreground"]["are"] == 0
    assert main(["info", "--tables", str(run)]) == 0
    text = capsys.readouterr().out
    assert "VOI" in text and "report" in text


def test_an_export_lists_its_layers(tmp_path, capsys):
    scale = {"size": [32, 16, 8], "resolution": [4, 4, 40], "encoding": "raw"}
    for name, dtype in (("image", "uint8"), ("segmentation", "uint64")):
        volume = {"data_type": dtype, "num_channels": 1, "type": name}
        metadata = {"multiscale_metadata": volume, "scale_metadata": scale}
        create_store(tmp_path / name, "neuroglancer_precomputed", None, 1, **metadata)
    (tmp_path / "neuroglancer.json").write_text("{}")
    found = show(capsys, tmp_path)
    assert found["kind"] == "export"
    assert {name: (v["shape"], v["dtype"]) for name, v in found["volumes"].items()} == {
        "image": ([8, 16, 32], "uint8"),
        "segmentation": ([8, 16, 32], "uint64"),
    }


def test_what_is_printed_is_yaml_with_the_same_content(tmp_path):
    found = describe(write_volume(f"{tmp_path}/raw.h5:raw", classes(), PLACEMENT))
    assert yaml.safe_load(render(found)) == found and "shape: [8, 16, 32]" in render(found)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("broken.h5", "x"),
        ("nowhere", None),
        ("scores.json", "[1]"),
        ("scores.json", "{"),
        ("records/index.json", "{}"),
        ("model/model.yaml", "a: 1"),
        ("raw.zarr/zarr.json", "[]"),
        ("raw.zarr/zarr.json", '{"attributes": {"ffn": 3}}'),
    ],
)
def test_a_damaged_file_is_named_in_one_line(tmp_path, capsys, name, content):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    if content is not None:
        path.write_text(content)
    target = path.parent if "/" in name else path
    assert main(["info", str(target)]) == 2
    captured = capsys.readouterr()
    assert len(captured.err.splitlines()) == 1 and str(target) in captured.err and not captured.out


def test_no_heavy_library_is_loaded(tmp_path):
    """TensorFlow alone takes seconds to load."""
    targets = [
        write_volume(f"{tmp_path}/raw.h5:raw", classes(), PLACEMENT),
        write_records(tmp_path),
        write_model(tmp_path / "model"),
    ]
    code = (
        "import sys; from ffn.cli import main; assert not any(main(['info', path]) for path in sys.argv[1:]);"
        "heavy = {'tensorflow', 'keras', 'tensorstore', 'scipy', 'skimage', 'matplotlib', 'PIL'};"
        "loaded = heavy & set(sys.modules);"
        "assert not loaded, loaded"
    )
    subprocess.run([sys.executable, "-c", code, *map(str, targets)], check=True, capture_output=True)
