"""All facts about the segments of a layer, as properties that Neuroglancer lists and as tables for other programs."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

from ffn.viewing.config import ExportConfig
from ffn.viewing.properties import (
    Column,
    Lengths,
    group_column,
    length_column,
    origin_columns,
    place_columns,
    pom_column,
    truth_columns,
    write_segment_properties,
)
from ffn.viewing.segment_table import write_tables
from ffn.viewing.segments import Counts
from ffn.viewing.tables import ExportTables
from ffn.viewing.volumes import Part


def write_facts(
    path: Path,
    part: Part,
    counts: Counts,
    config: ExportConfig,
    tables: ExportTables,
    lengths: Lengths,
    others: Collection[str],
) -> None:
    """Write the facts about the segments of one layer.

    Parameters
    ----------
    path : Path
        Folder of the layer. Tables get its name and a suffix.
    part : Part
        The layer.
    counts : Counts
        What was counted of its segments.
    config : ExportConfig
        Formats.
    tables : ExportTables
        Origins and groups.
    lengths : Lengths
        Of the skeletons.
    others : collection of str
        Names of all layers.
    """
    columns = list(_columns(part, counts, config, tables, lengths, others))
    write_segment_properties(path, counts.segments, columns)
    write_tables(path, config.formats, counts.segments, columns)


def _columns(
    part: Part,
    counts: Counts,
    config: ExportConfig,
    tables: ExportTables,
    lengths: Lengths,
    others: Collection[str],
) -> Iterator[Column]:
    segments, is_main = counts.segments, part.name == "segmentation"
    yield from place_columns(segments, part.voxel_size_zyx_nm)
    if is_main and tables.origins is not None:
        yield from origin_columns(segments, tables.origins, counts.ids_at_points(len(tables.origins.num_fovs)))
    if part.name == tables.base:
        yield group_column(segments, tables.groups)
    if is_main and config.skeleton_mip is not None:
        yield length_column(segments, lengths)
    if is_main and "probability" in others:
        yield pom_column(counts.mean_pom())
    if is_main and "truth" in others:
        yield from truth_columns(counts.matches())
