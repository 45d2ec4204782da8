"""Apply a merge graph: join the base segments whose edges reach the threshold."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Sequence

import numpy as np

from ffn.assembly.merge_graph import MergeGraphError, apply_groups, mapping_text, merge_groups, read_graphs
from ffn.config import MergeConfig
from ffn.io import atomic
from ffn.io.create import create_volume
from ffn.io.open import open_volume
from ffn.io.volume import Placement, require_labels, require_other_file, voxel_size_of
from ffn.options import add_options, from_arguments
from ffn.progress import track
from ffn.provenance import provenance

log = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Join the segments whose edges in the merge graph reach the threshold. The base segmentation is not changed."""
    parser.add_argument("graphs", nargs="+", metavar="GRAPH.csv", help="files of ffn agglomerate")
    parser.add_argument(
        "--segmentation", required=True, metavar="VOLUME", help="base segmentation, NAME.zarr or FILE.h5:DATASET"
    )
    parser.add_argument(
        "--out", required=True, metavar="VOLUME", help="uint64 segmentation, NAME.zarr or FILE.h5:DATASET"
    )
    parser.add_argument("--mapping", metavar="FILE.csv", help="also write base_id,group_id of every joined segment")
    add_options(parser, MergeConfig)
    parser.set_defaults(function=_run)


def _run(arguments: argparse.Namespace) -> None:
    config = from_arguments(MergeConfig, arguments)
    merge(arguments.segmentation, arguments.graphs, arguments.out, arguments.mapping, config)


def merge(
    segmentation_spec: str, graph_paths: Sequence[str], out_spec: str, mapping_path: str | None, config: MergeConfig
) -> None:
    """Write a copy of the base segmentation with joined ids, block by block.

    Parameters
    ----------
    segmentation_spec : str
        Base segmentation.
    graph_paths : sequence of str
        Files written by ``ffn agglomerate``.
    out_spec : str
        ``NAME.zarr`` or ``FILE.h5:DATASET``, uint64. A group gets the smallest id of its members.
    mapping_path : str or None
        CSV file to write, with ``base_id,group_id`` of every joined segment.
    config : MergeConfig
        Threshold, block size.

    Raises
    ------
    MergeGraphError
        If a graph is missing or damaged, or joins segments that do not exist.
    VolumeError
        If an output would overwrite an input.
    """
    require_other_file(out_spec, segmentation_spec, *graph_paths)
    if mapping_path is not None:
        require_other_file(mapping_path, segmentation_spec, out_spec, *graph_paths)
    edges = read_graphs(graph_paths)
    base_ids, group_ids = merge_groups(edges, config.threshold)
    sizes = np.unique(group_ids, return_counts=True)[1]
    counts = (len(edges), len(base_ids), len(sizes), sizes.max(initial=0))
    log.info("%d decision points, %d segments in %d groups, %d in the largest", *counts)
    record = provenance("merge", config, segmentation=segmentation_spec, graphs=len(graph_paths), joined=len(base_ids))
    with open_volume(segmentation_spec) as base:
        require_labels(base)
        blocks = list(base.box.blocks(config.block_size_zyx))
        placement = Placement(base.box, voxel_size_of(base), record)
        found = np.zeros(len(base_ids), bool)
        with create_volume(out_spec, np.uint64, placement) as writer:
            for block in track(blocks, len(blocks), "merge"):
                labels = base.read(block).astype(np.uint64)
                found |= np.isin(base_ids, labels)
                writer.write(block, apply_groups(labels, base_ids, group_ids))
            if not found.all():
                raise MergeGraphError(
                    f"{segmentation_spec}: lacks segment {base_ids[~found][0]}, expected all that the graph joins. "
                    "Was the graph made from another segmentation? Rerun agglomerate"
                )
    if mapping_path is not None:
        atomic.write_text(mapping_path, mapping_text(base_ids.tolist(), group_ids.tolist()))
