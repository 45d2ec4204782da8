"""List all segments with their sizes, so that Neuroglancer can sort and filter them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

FOLDER = "segment_properties"


def write_segment_properties(layer: Path, sizes: Mapping[int, int]) -> None:
    """Write the segments of a layer.

    Parameters
    ----------
    layer : Path
        Folder of a labels volume.
    sizes : mapping of int to int
        Voxels of each segment at mip 0.
    """
    ids = sorted(sizes)
    counts = [sizes[segment_id] for segment_id in ids]
    fits = max(counts, default=0) < 2**32  # the format has no larger integers
    voxels = {
        "id": "voxels",
        "type": "number",
        "data_type": "uint32" if fits else "float32",
        "values": counts,
    }
    inline = {"ids": [str(segment_id) for segment_id in ids], "properties": [voxels]}
    (layer / FOLDER).mkdir()
    (layer / FOLDER / "info").write_text(
        json.dumps({"@type": "neuroglancer_segment_properties", "inline": inline})
    )


def read_segment_ids(layer: Path) -> set[int]:
    """Return the ids of all segments of a layer."""
    inline = json.loads((layer / FOLDER / "info").read_text())["inline"]
    return set(map(int, inline["ids"]))
