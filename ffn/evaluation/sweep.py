"""The stage `sweep`: scores of a merge graph at every threshold, without writing a segmentation for each."""

from __future__ import annotations

from collections.abc import Sequence

from ffn.assembly.merge_graph import MergeEdge, apply_groups, merge_groups, read_graph
from ffn.atomic import write_json
from ffn.config import SweepConfig
from ffn.contingency import ContingencyTable, merge_tables
from ffn.evaluation.evaluate import common_box
from ffn.evaluation.scores import CONVENTIONS, score
from ffn.evaluation.scoring import tabulate
from ffn.geometry import Box
from ffn.provenance import provenance
from ffn.volume import open_volume, require_labels

NO_MERGES = 1.01  # a threshold that no score reaches: the base segmentation

Row = dict[str, float | int | None]


def sweep(
    segmentation_spec: str,
    truth_spec: str,
    graph_paths: Sequence[str],
    out: str,
    config: SweepConfig,
    box: Box | None = None,
) -> None:
    """Write how scores against the truth change with the threshold of the merge graph.

    Parameters
    ----------
    segmentation_spec : str
        Base segmentation.
    truth_spec : str
        Labels.
    graph_paths : sequence of str
        Files of ``ffn agglomerate`` for this base segmentation.
    out : str
        JSON file: under ``sweep`` for each convention a list of rows by falling threshold, the first of them without
        any merge.
    config : SweepConfig
        Thresholds, block size.
    box : Box, optional
        Part to score.

    Raises
    ------
    MergeGraphError, VolumeError, EvaluationError
        If an input is missing, damaged or elsewhere.
    """
    edges = [edge for path in graph_paths for edge in read_graph(path)]
    with open_volume(truth_spec) as truth, open_volume(segmentation_spec) as segmentation:
        require_labels(truth)
        require_labels(segmentation)
        box = common_box(segmentation, truth, box)
        table = tabulate(truth.read, segmentation.read, box, config.block_size_zyx)
    thresholds = [NO_MERGES, *sorted(config.thresholds, reverse=True)]
    rows = {name: [sweep_row(table, edges, t, name) for t in thresholds] for name in CONVENTIONS}
    inputs = {"segmentation": segmentation_spec, "truth": truth_spec, "graphs": len(graph_paths)}
    write_json(out, {"box": str(box), "sweep": rows, "provenance": provenance("sweep", config, **inputs)})


def sweep_row(table: ContingencyTable, edges: list[MergeEdge], threshold: float, convention: str) -> Row:
    """Score the segmentation that `threshold` would give.

    Parameters
    ----------
    table : ContingencyTable
        Truth and base segmentation.
    edges : list of MergeEdge
        The merge graph.
    threshold : float
        Smallest score that joins.
    convention : str
        Key of `CONVENTIONS`.

    Returns
    -------
    dict
        ``threshold``, ``num_merges`` (segments that disappear) and the scores.
    """
    base_ids, group_ids = merge_groups(edges, threshold)
    joined = ContingencyTable(table.truth, apply_groups(table.segment, base_ids, group_ids), table.voxels)
    num_merges = int((base_ids != group_ids).sum())
    return {"threshold": threshold, "num_merges": num_merges, **score(merge_tables([joined]), convention)}
