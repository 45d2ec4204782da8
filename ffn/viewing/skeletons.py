"""Skeletons of segments with radii, made block by block, as sharded Neuroglancer skeletons and as SWC.

Method: TEASAR by kimimaro with its default parameters. Sources of the formats: Neuroglancer,
``src/datasource/precomputed/skeletons.md``; Cannon et al. 1998, J. Neurosci. Methods 84. SWC names micrometres, but
skeletons of electron microscopy come in nm, and navis reads the unit from the line ``# Meta``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import kimimaro
import numpy as np
import osteoid

from ffn.geometry import ZYX, Box, Grid, cut
from ffn.io.atomic import atomic_path, this_job
from ffn.io.block_log import Result
from ffn.viewing.segments import number_segments
from ffn.viewing.shards import SegmentFiles, SegmentPieces, Sharding, write_shard

BLOCK_ZYX: ZYX = (256, 256, 256)  # voxels of the mip; kimimaro needs about 30 bytes for each
RADIUS = {"id": "radius", "data_type": "float32", "num_components": 1}  # attribute of the vertices


class Skeletons(SegmentFiles):
    """The skeletons of a layer, in nm."""

    name = "skeletons"
    encoded = 1.0
    info = {
        "@type": "neuroglancer_skeletons",
        "transform": [1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0],
        "vertex_attributes": [RADIUS],
    }

    def cut(self) -> Grid:
        """Cut it into blocks that include the first layer of the next, where kimimaro ends the paths of both."""
        box = self.scale.box
        ranges = cut(box, BLOCK_ZYX).ranges_zyx
        return Grid([[(a, min(b + 1, end)) for a, b in along] for along, end in zip(ranges, box.stop, strict=True)])

    def pieces_in(self, wanted: np.ndarray, block: Box) -> Iterator[tuple[int, bytes]]:
        """Yield the skeletons of the `wanted` segments (ascending) in a block."""
        found = kimimaro.skeletonize(
            number_segments(self.read(block), wanted).T,
            anisotropy=self.scale.voxel_size_zyx_nm[::-1],
            dust_threshold=0,
            fix_borders=True,
            progress=False,
            parallel=1,
        )
        # kimimaro measures from the centre of the first voxel.
        origin = (np.add(block.start, 0.5) * self.scale.voxel_size_zyx_nm)[::-1]
        for number, skeleton in sorted(found.items()):
            skeleton.vertices = (skeleton.vertices + origin).astype(np.float32)
            yield int(wanted[number - 1]), _encode(skeleton)

    def write_joined(self, sharding: Sharding, path: Path, segments: SegmentPieces) -> Result:
        """Write the skeletons of a shard; return their ids and lengths, nm."""
        lengths: dict[int, float] = {}

        def items() -> Iterator[tuple[int, bytes, bytes]]:
            for owner, pieces in segments:
                skeleton = _joined([osteoid.Skeleton.from_precomputed(p, vertex_attributes=[RADIUS]) for p in pieces])
                if self.has_swc and len(skeleton.edges):
                    write_swc(self.layer / "swc", owner, skeleton)
                lengths[owner] = float(skeleton.cable_length())
                yield owner, b"", _encode(skeleton)

        write_shard(path, sharding, items())
        return {"ids": np.array(list(lengths), np.uint64), "nm": np.array(list(lengths.values()))}


def _joined(pieces: list[osteoid.Skeleton]) -> osteoid.Skeleton:
    """Join the pieces of a segment from all blocks into one skeleton."""
    if len(pieces) <= 1:
        return pieces[0] if pieces else osteoid.Skeleton()
    return kimimaro.postprocess(osteoid.Skeleton.simple_merge(pieces), dust_threshold=0, tick_threshold=0)


def _encode(skeleton: osteoid.Skeleton) -> bytes:
    """Encode vertices (xyz, nm), edges and radii (nm)."""
    skeleton.extra_attributes = [RADIUS]
    return skeleton.to_precomputed()


def write_swc(folder: Path, owner: int, skeleton: osteoid.Skeleton) -> None:
    """Write a skeleton as ``ID.swc``, parents before their children."""
    _, _, rows = skeleton.to_swc().partition("\n\n")  # without a header that has the time
    meta = {"name": str(owner), "id": owner, "units": "1 nanometer"}
    with atomic_path(folder / f"{owner}.swc", this_job()) as temporary, temporary.open("w") as file:
        file.write(f"# Segment {owner}. Positions and radii are nm from the origin of the full volume.\n")
        file.write(f"# Meta: {json.dumps(meta)}\n# node type x y z radius parent\n{rows}\n")
