"""Layers of a Neuroglancer state: how each volume of an export is shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ffn.viewing.properties import Groups
from ffn.viewing.state import BASE, State

MAX_MAPPED = 100_000  # ids in the groups of a state; with more, a browser takes seconds to load it

# The layers below show through where a value is 0.
EDGES_SHADER = "void main() { float v = toNormalized(getDataValue()); emitRGBA(vec4(1.0, 0.35, 0.1, 0.7 * v)); }"
PROBABILITY_SHADER = (
    "void main() { float v = toNormalized(getDataValue()); emitRGBA(vec4(colormapJet(v), v > 0.0 ? 0.5 : 0.0)); }"
)
POINTS_SHADER = (
    "void main() { setPointMarkerSize(4.0); setPointMarkerBorderWidth(0.0);"
    " setColor(vec4(colormapJet(float(prop_partition()) / 12.0), 1.0)); }"
)


def image_layer(name: str, contrast: tuple[float, float]) -> State:
    """Return an image layer.

    Parameters
    ----------
    name : str
        Name of the layer and of its folder.
    contrast : tuple of float
        Values shown as black and as white.
    """
    shader = {"normalized": {"range": list(contrast)}}
    return {"type": "image", "name": name, "source": source(name), "shaderControls": shader}


def overlay_layer(name: str, shader: str) -> State:
    """Return a layer drawn over the image, from the folder `name`; hidden at first."""
    return {"type": "image", "name": name, "source": source(name), "shader": shader, "visible": False}


def labels_layer(name: str, segment_ids: Sequence[int]) -> State:
    """Return a segmentation layer with its meshes.

    Parameters
    ----------
    name : str
        Name of the layer and of its folder.
    segment_ids : sequence of int
        Selected segments: shown in 3D, and in stronger colours in the sections.
    """
    return {
        "type": "segmentation",
        "name": name,
        "source": {"url": source(name), "subsources": {"skeletons": False}},
        "segments": [str(segment_id) for segment_id in segment_ids],
        "selectedAlpha": 0.4,
        "notSelectedAlpha": 0.18,
    }


def skeletons_layer(name: str) -> State:
    """Return a layer with the skeletons of the segments selected in layer `name`; hidden at first."""
    return {
        "type": "segmentation",
        "name": f"{name} skeletons",
        "source": {
            "url": source(name),
            "enableDefaultSubsources": False,
            "subsources": {"skeletons": True},
        },
        "linkedSegmentationGroup": name,
        "skeletonRendering": {"mode3d": "lines", "lineWidth3d": 3, "mode2d": "lines_and_points"},
        "visible": False,
    }


def with_groups(layer: State, groups: Groups, known: np.ndarray) -> State:
    """Return a segmentation layer that shows each group of segments as one.

    Parameters
    ----------
    layer : dict
        From `labels_layer`.
    groups : Groups
        Group of each base id.
    known : uint64 ndarray of shape (N,)
        Base ids that occur in the layer, ascending. Beyond `MAX_MAPPED` ids, the smallest groups are left out.
    """
    group_ids = groups.of(known)
    order = np.argsort(group_ids, kind="stable")
    base_ids = known[order]
    _, first, sizes = np.unique(group_ids[order], return_index=True, return_counts=True)
    largest_first = np.lexsort((base_ids[first], -sizes))
    taken = largest_first[(sizes[largest_first] > 1) & (np.cumsum(sizes[largest_first]) <= MAX_MAPPED)]
    members = [base_ids[first[group] : first[group] + sizes[group]].tolist() for group in taken]
    return {**layer, "equivalences": [list(map(str, ids)) for ids in members]}


def points_layer(name: str) -> State:
    """Return a layer of training coordinates from the folder `name`, coloured by partition; hidden at first."""
    return {
        "type": "annotation",
        "name": name,
        "source": source(name),
        "shader": POINTS_SHADER,
        "visible": False,
    }


def errors_layer(errors: Sequence[Mapping[str, Any]]) -> State:
    """Return a layer with a point for each of the worst errors; hidden at first.

    Parameters
    ----------
    errors : sequence of mapping
        Errors of ``ffn evaluate``.
    """
    annotations = [
        {
            "type": "point",
            "id": error["name"],
            "point": [n + 0.5 for n in error["position_zyx"][::-1]],
            "description": f"{error['name']}: {error['voxels']} voxels, bodies {_listed(error['truth_ids'])}, "
            f"segments {_listed(error['segment_ids'])}",
        }
        for error in errors
    ]
    return {
        "type": "annotation",
        "name": "errors",
        "source": "local://annotations",
        "annotations": annotations,
        "annotationColor": "#ffd23f",
        "visible": False,
    }


def source(name: str) -> str:
    """Return the URL of the folder `name` of an export."""
    return f"precomputed://{BASE}/{name}"


def _listed(ids: Sequence[int]) -> str:
    return ", ".join(map(str, ids))
