"""Two tubes as volumes, with everything that an export can show of them."""

import json

import numpy as np
import pytest

from ffn.geometry import Box
from ffn.io.scratch import Tables
from ffn.viewing.inputs import Sources
from ffn.viewing.meshes import Meshes
from ffn.viewing.precomputed import Layer
from ffn.viewing.skeletons import Skeletons

from ..volumes import write

BOX = Box((20, -10, 300), (20 + 24, -10 + 70, 300 + 90))
SIZE_NM = (20.0, 8.0, 10.0)
ERRORS = [
    {"kind": kind, "name": name, "position_zyx": place, "truth_ids": truth, "segment_ids": segments, "voxels": 7}
    for kind, name, place, truth, segments in (
        ("split", "split-01", [29, 4, 310], [9], [90, 91]),
        ("merge", "merge-01", [30, 9, 320], [9, 4], [91]),
        ("split", "split-02", [29, 4, 340], [4], [44, 91]),
    )
]
ERRORS[0]["other_zyx"] = [29, 4, 314]


@pytest.fixture(autouse=True)
def one_process(monkeypatch):
    """Export in this process, if a test does not ask for more: others would have to import everything first."""
    monkeypatch.setattr("ffn.viewing.work.threads_here", lambda: 1)


def two_tubes():
    """Return two neurites along x, one voxel apart, and a speck that is too small for a mesh."""
    labels = np.zeros(BOX.shape, np.uint32)
    labels[6:12, 10:20, :] = 9
    labels[6:12, 21:30, :] = 4
    labels[20:22, 50:53, 5:8] = 70_000
    return labels


def read_json(path):
    return json.loads(path.read_text())


@pytest.fixture
def sources(tmp_path):
    """Image, segmentation and a part of the ground truth."""
    labels = two_tubes()
    image = (100 + 100 * (labels > 0)).astype(np.uint8)
    return Sources(
        write(tmp_path / "raw.h5", image, BOX.start, SIZE_NM),
        write(tmp_path / "seg.h5", labels, BOX.start, SIZE_NM),
        write(tmp_path / "truth.h5", labels[:10], BOX.start, SIZE_NM),
    )


def segments():
    """Return tube 9 in two pieces, one of which is merged with a part of tube 4."""
    labels = np.zeros(BOX.shape, np.uint16)
    labels[6:12, 10:20, :40], labels[6:12, 10:20, 40:] = 90, 91
    labels[6:12, 21:30, :80], labels[6:12, 21:30, 80:] = 44, 91
    return labels


@pytest.fixture
def all_sources(tmp_path):
    """Everything that can be exported."""
    return write_all(tmp_path)


def write_all(folder):
    """Write everything that can be exported."""
    labels = segments()
    (folder / "scores.json").write_text(json.dumps({"errors": ERRORS}))
    return Sources(
        image=write(folder / "raw.h5", (100 + labels // 2).astype(np.uint8), BOX.start, SIZE_NM),
        segmentation=write(folder / "seg.h5", labels, BOX.start, SIZE_NM),
        truth=write(folder / "truth.h5", np.where(two_tubes() < 10, two_tubes(), 0), BOX.start, SIZE_NM),
        errors=str(folder / "scores.json"),
    )


def write_volume(path, encoding, scales, read):
    """Write all mips of a volume."""
    layer = Layer(path, encoding, scales, read)
    layer.create()
    for mip in range(len(layer.scales)):
        for shard in layer.shards(mip):
            if mip:
                layer.downsample_shard(mip, shard)
            else:
                layer.copy_shard(shard)


def write_meshes(layer, mip, scale, segment_ids, empty_ids=()):
    write_joined(Meshes(layer, mip, scale, layer / "pieces"), segment_ids, empty_ids)


def write_skeletons(layer, mip, scale, segment_ids, empty_ids=()):
    write_joined(Skeletons(layer, mip, scale, layer / "pieces"), segment_ids, empty_ids)


def write_joined(kind, segment_ids, empty_ids):
    """Write meshes or skeletons of some segments, and empty ones of others."""
    wanted, every = (np.array(sorted(ids), np.uint64) for ids in (segment_ids, [*segment_ids, *empty_ids]))
    made = [kind.write_pieces(wanted, block) for block in kind.blocks]
    tables = Tables(kind.sort_pieces(made, every))
    for shard in kind.shards:
        kind.join_shard(tables, shard)
    info = read_json(kind.layer / "info")
    (kind.layer / "info").write_text(json.dumps({**info, kind.name: kind.name}))
