"""The tables of an export, read and checked before anything is written."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ffn.evaluation.errors import worst_of_each_kind
from ffn.geometry import Box
from ffn.viewing.config import ExportConfig
from ffn.viewing.inputs import Sources, read_coordinates, read_errors, read_groups, read_origins
from ffn.viewing.properties import Groups, Origins


@dataclass(frozen=True)
class ExportTables:
    """Tables that complement the volumes.

    Parameters
    ----------
    origins : Origins or None
        Seeds of the segmentation.
    groups : Groups
        Agglomerated group of each base id.
    base : str or None
        Layer that has the base ids.
    points : int64 ndarray of shape (K, 3)
        Training coordinates.
    point_classes : uint8 ndarray of shape (K,)
        Their partitions.
    errors : list of dict
        Worst errors, each of which gets a link.
    """

    origins: Origins | None = None
    groups: Groups = Groups()
    base: str | None = None
    points: np.ndarray = field(default_factory=lambda: np.empty((0, 3), np.int64))
    point_classes: np.ndarray = field(default_factory=lambda: np.empty(0, np.uint8))
    errors: list[dict[str, Any]] = field(default_factory=list)


def read_tables(sources: Sources, box: Box, config: ExportConfig) -> ExportTables:
    """Read all tables that are given.

    Parameters
    ----------
    sources : Sources
        Files to read.
    box : Box
        Box of the export. Training coordinates outside are dropped.
    config : ExportConfig
        Number of coordinates, number of links.

    Raises
    ------
    ExportError
        If a table cannot be read.
    """
    points = read_coordinates(sources.coordinates, box, config.max_points) if sources.coordinates else ()
    given = {"points": points[0], "point_classes": points[1]} if points else {}
    base = "supervoxels" if sources.supervoxels else "segmentation"
    return ExportTables(
        origins=read_origins(sources.origins) if sources.origins else None,
        groups=read_groups(sources.agglomeration) if sources.agglomeration else Groups(),
        base=base if sources.agglomeration else None,
        errors=worst_of_each_kind(read_errors(sources.errors), config.num_links) if sources.errors else [],
        **given,
    )
