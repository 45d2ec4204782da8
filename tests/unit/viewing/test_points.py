"""Training coordinates as annotations."""

import json

import numpy as np
import tensorstore as ts

from ffn.viewing.config import ExportConfig
from ffn.viewing.export import export


def test_training_coordinates_are_points_inside_the_box(tmp_path, all_sources):
    export(all_sources, tmp_path / "out", ExportConfig())
    info = json.loads((tmp_path / "out/coordinates/info").read_text())
    content = (tmp_path / "out/coordinates/all/0_0_0").read_bytes()
    assert np.frombuffer(content[:8], "<u8") == 4
    rows = np.frombuffer(content[8 : 8 + 4 * 16], [("xyz", "<f4", 3), ("class", "u1"), ("fill", "u1", 3)])
    assert rows["xyz"][0].tolist() == [320.5, 0.5, 30.5] and rows["class"].tolist() == [3, 3, 3, 11]
    base = {"driver": "file", "path": f"{tmp_path}/out/coordinates/by_id/"}
    spec = {"driver": "neuroglancer_uint64_sharded", "metadata": info["by_id"]["sharding"], "base": base}
    assert ts.KvStore.open(spec).result().read((3).to_bytes(8, "big")).result().value == rows[3].tobytes()
    export(all_sources, tmp_path / "few", ExportConfig(max_points=2))
    # Every third point of each partition is kept; one of them lies outside the volume.
    assert (tmp_path / "few/coordinates/all/0_0_0").read_bytes()[:1] == b"\x02"
