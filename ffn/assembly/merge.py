"""Apply a merge graph: join the base segments whose edges reach a score."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np

from ffn import atomic
from ffn.assembly.merge_graph import apply_groups, mapping_text, merge_groups, read_graph
from ffn.config import MergeConfig
from ffn.progress import track
from ffn.provenance import provenance
from ffn.volume import Placement, create_volume, open_volume, require_labels, require_other_file

log = logging.getLogger(__name__)


def merge(
    segmentation_spec: str, graph_paths: Sequence[str], out_spec: str, mapping_path: str | None, config: MergeConfig
) -> None:
    """Write a segmentation with joined ids, block by block; the base segmentation stays as it is.

    Parameters
    ----------
    segmentation_spec : str
        Base segmentation.
    graph_paths : sequence of str
        Files of ``ffn agglomerate``.
    out_spec : str
        ``FILE.h5:DATASET``, uint64. A group has the smallest id of its members.
    mapping_path : str or None
        CSV file base_id, group_id of the joined segments.
    config : MergeConfig
        Which edges join.

    Raises
    ------
    MergeGraphError
        If a graph is missing or damaged.
    VolumeError
        If the output would replace the base segmentation.
    """
    require_other_file(out_spec, segmentation_spec)
    edges = [edge for path in graph_paths for edge in read_graph(path)]
    base_ids, group_ids = merge_groups(edges, config.threshold)
    log.info("%d edges, %d segments in %d groups", len(edges), len(base_ids), len(np.unique(group_ids)))
    record = provenance("merge", config, segmentation=segmentation_spec, graphs=len(graph_paths), joined=len(base_ids))
    with open_volume(segmentation_spec) as base:
        require_labels(base)
        blocks = list(base.box.blocks(config.block_size_zyx))
        placement = Placement(base.box, base.voxel_size_zyx_nm or (1.0, 1.0, 1.0), record)
        with create_volume(out_spec, np.uint64, placement) as writer:
            for block in track(blocks, len(blocks), "merge"):
                writer.write(block, apply_groups(base.read(block).astype(np.uint64), base_ids, group_ids))
    if mapping_path is not None:
        atomic.write_text(mapping_path, mapping_text(base_ids.tolist(), group_ids.tolist()))
