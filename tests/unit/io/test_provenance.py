"""What made a file is read from any kind of output."""

import json

import numpy as np
import pytest

from ffn.assembly.config import FillConfig
from ffn.config import ModelConfig
from ffn.errors import VolumeError
from ffn.io.provenance import read_provenance
from ffn.model.network import weight_shapes
from ffn.model.store import Model, save_model
from ffn.provenance import provenance

RECORD = provenance("fill", FillConfig(max_distance_nm=3), image="raw.h5:raw")


def test_models_and_scores_add_what_they_say_elsewhere(tmp_path):
    path = tmp_path / "index.json"
    path.write_text(json.dumps({"rng_seed": 3, "weights": {"cube": 2.0}, "shards": [], "provenance": RECORD}))
    assert read_provenance(path)["inputs"] == {"image": "raw.h5:raw", "rng_seed": 3, "weights": {"cube": 2.0}}
    path.write_text(json.dumps({"box": "0:1,0:1,0:1", "scores": {}, "provenance": RECORD}))
    assert read_provenance(path)["inputs"] == {"image": "raw.h5:raw", "box": "0:1,0:1,0:1"}
    config = ModelConfig(depth=1, features=2, image_mean=5, image_stddev=1)
    weights = {name: np.zeros(shape, np.float32) for name, shape in weight_shapes(config).items()}
    save_model(tmp_path, Model(config, weights, RECORD))
    assert read_provenance(tmp_path / "model.yaml") == {**RECORD, "model": config.model_dump(mode="json")}
    assert read_provenance(tmp_path / "weights.h5") == {}


def test_exports_and_merge_graphs_have_it_in_files_of_their_own(tmp_path):
    (tmp_path / "neuroglancer.json").write_text('{"layers": []}')
    assert read_provenance(tmp_path / "neuroglancer.json") == {}
    (tmp_path / "provenance.json").write_text(json.dumps(RECORD))
    assert read_provenance(tmp_path / "neuroglancer.json") == RECORD
    (tmp_path / "graph.csv").write_text(f"# {json.dumps(RECORD)}\nsegment_a,segment_b\n1,2\n")
    (tmp_path / "mapping.csv").write_text("base_id,group_id\n1,2\n")
    assert read_provenance(tmp_path / "graph.csv") == RECORD
    assert read_provenance(tmp_path / "mapping.csv") == {}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.json", "{"),
        ("a.json", "[]"),
        ("a.json", '{"provenance": 5}'),
        ("model.yaml", "a: [\n"),
        ("model.yaml", "text"),
        ("a.csv", "# {\n"),
        ("a.h5", "x"),
    ],
)
def test_a_damaged_file_is_one_line(name, content, tmp_path):
    (tmp_path / name).write_text(content)
    with pytest.raises(VolumeError, match=f"{name}: ") as caught:
        read_provenance(tmp_path / name)
    assert "\n" not in str(caught.value)
