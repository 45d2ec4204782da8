"""List all segments with their sizes, so that Neuroglancer can sort and filter them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from ffn.errors import ExportError

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
    (layer / FOLDER / "info").write_text(json.dumps({"@type": "neuroglancer_segment_properties", "inline": inline}))


def read_segment_ids(layer: Path) -> set[int]:
    """Return the ids of all segments of a layer.

    Raises
    ------
    ExportError
        If the layer has no readable list of them.
    """
    path = layer / FOLDER / "info"
    try:
        return set(map(int, json.loads(path.read_text())["inline"]["ids"]))
    except (OSError, ValueError, KeyError):
        raise ExportError(f"{path}: cannot be read, the list of segments is needed. Run ffn export again") from None
