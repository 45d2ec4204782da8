"""Apply an agglomeration graph: join the supervoxels whose edges reach the threshold."""

from __future__ import annotations

import argparse
import hashlib
import logging
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ffn.assembly.calibration import read_scored
from ffn.assembly.config import MergeConfig
from ffn.assembly.corrections import corrections_text
from ffn.assembly.given import (
    NUCLEI,
    SEGMENTS,
    GraphInputs,
    add_given_options,
    count_nuclei,
    warn_of_joined,
)
from ffn.assembly.merge_graph import MergeGraphError, apply_groups, best_scores, mapping_text, merge_groups
from ffn.config import PART_ZYX
from ffn.contingency import RowLookup, add_up, count_ids
from ffn.geometry import Box
from ffn.io import atomic
from ffn.io.block_log import Result
from ffn.io.blocks import WHOLE, Job, Writers, add_job_options, job_of, map_blocks, no_result, reduce_step
from ffn.io.open import identity, open_segmentation
from ffn.io.store import require_replaceable
from ffn.io.store_names import MAIN
from ffn.io.tables import Tables
from ffn.io.volume import Placement, require_labels, require_other_file, voxel_size_of
from ffn.options import add_options, add_volume_option, from_arguments
from ffn.provenance import fingerprint, provenance

log = logging.getLogger(__name__)

MAPPING = "mapping"  # step before the blocks
NUM_LISTED = 50
WARN_SHARE = 0.2  # of the labelled voxels in one group; our choice: the largest body of FIB-25's 250³ has a tenth


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Join the segments whose edges in the graph reach the threshold. The segmentation itself is not changed."""
    parser.add_argument("graphs", nargs="+", metavar="GRAPH.csv", help="files of ffn agglomerate")
    add_volume_option(parser, "--segmentation", "supervoxels")
    add_volume_option(parser, "--out", "uint64 segmentation")
    add_given_options(parser)
    parser.add_argument("--mapping", metavar="FILE.csv", help="also write base_id,group_id of every joined segment")
    parser.add_argument(
        "--groups", metavar="FILE.csv", help="also write the largest groups, to check for runaway merging"
    )
    add_job_options(parser, (NUCLEI, MAPPING))
    add_options(parser, MergeConfig)
    parser.set_defaults(function=_run)


def _run(arguments: argparse.Namespace) -> None:
    config = from_arguments(MergeConfig, arguments)
    inputs = GraphInputs(
        segmentation=arguments.segmentation,
        graphs=arguments.graphs,
        corrections=arguments.corrections,
        nuclei=arguments.nuclei,
    )
    merge(inputs, arguments.out, config, arguments.mapping, arguments.groups, job_of(arguments))


def merge(
    inputs: GraphInputs,
    out: str,
    config: MergeConfig,
    mapping_path: str | None = None,
    groups_path: str | None = None,
    job: Job = WHOLE,
) -> None:
    """Write a copy of the supervoxels with joined ids, block by block.

    Parameters
    ----------
    inputs : GraphInputs
        Supervoxels and graph. The step `NUCLEI` reads nuclei, the step `MAPPING` graph and corrections, once for all
        jobs.
    out : str
        ``NAME.zarr``, uint64. A group gets the smallest id of its members.
    config : MergeConfig
        Threshold.
    mapping_path : str, optional
        CSV file to write, with ``base_id,group_id`` of every joined segment.
    groups_path : str, optional
        CSV file to write, with ``group_id,segments,voxels,share`` of the largest groups.
    job : Job
        Which blocks to write, see `ffn.io.blocks`.
    """
    read = {"segmentation": inputs.segmentation, **inputs.given}
    require_other_file(out, *read.values(), *inputs.graphs)
    for table in filter(None, (mapping_path, groups_path)):
        require_other_file(table, *read.values(), out, *inputs.graphs)
    require_replaceable(out, {MAIN})
    key = {**fingerprint("merge", config), "graphs": hashlib.sha256("\n".join(inputs.graphs).encode()).hexdigest()}
    made = _mapping(inputs, out, config, key, job)
    if made is None:
        return
    mapping, key = made
    base_ids, group_ids = mapping.read("base_ids"), mapping.read("group_ids")
    lookup = RowLookup(base_ids)
    record = provenance("merge", config, **read, graphs=len(inputs.graphs), joined=len(base_ids))
    with open_segmentation(inputs.segmentation) as base:
        require_labels(base)

        def work(block: Box, writers: Writers) -> Result:
            found, num_labelled = [], 0
            for part in block.blocks(PART_ZYX):
                labels = base.read(part).astype(np.uint64)
                ids, sizes = count_ids(labels[labels != 0])
                rows = lookup.find(ids)
                found.append(np.stack([rows, sizes], axis=1)[rows >= 0])
                num_labelled += int(sizes.sum())
                writers[MAIN].write(part, apply_groups(labels, base_ids, group_ids))
            return {"sizes": add_up(np.concatenate(found)), "labelled": num_labelled}

        def at_end(results: Iterable[Result]) -> None:
            voxels, num_labelled = np.zeros(len(base_ids), np.int64), 0
            for each in results:
                voxels[each["sizes"][:, 0]] += each["sizes"][:, 1]
                num_labelled += each["labelled"]
            _require_held(base_ids[voxels == 0], inputs.segmentation)
            if mapping_path is not None:
                atomic.write_text(mapping_path, mapping_text(base_ids.tolist(), group_ids.tolist()))
            _report(_largest(group_ids, voxels, num_labelled), out, groups_path)

        placement = Placement(base.box, voxel_size_of(base), record)
        map_blocks(out, {MAIN: np.uint64}, placement, work, key, job, at_end=at_end)


def _mapping(
    inputs: GraphInputs, out_path: str, config: MergeConfig, key: Mapping[str, Any], job: Job
) -> tuple[Tables, dict[str, Any]] | None:
    """Return the segments that graphs and people join, with their groups, and the key that depends on them."""
    corrections = inputs.read_corrections()
    nuclei = count_nuclei(inputs, out_path, job)
    if nuclei is None:
        return None
    key = {**key, "segmentation": identity(inputs.segmentation), "nuclei": nuclei.digest}
    key["corrections"] = corrections_text(corrections)  # its text, so that touching the file repeats nothing

    def joined(_: object) -> dict[str, np.ndarray]:
        scores = best_scores(read_scored(inputs.graphs, config.calibration))
        segments = nuclei.read(SEGMENTS)
        base_ids, group_ids = merge_groups(scores, config.threshold, inputs.constraints(corrections), segments)
        numbers = np.unique(group_ids, return_counts=True)[1]
        counts = (len(scores), len(base_ids), len(numbers), numbers.max(initial=0))
        log.info("%d pairs with a score, %d segments in %d groups, %d in the largest", *counts)
        warn_of_joined(segments, base_ids, group_ids, where=str(inputs.corrections))
        return {"base_ids": base_ids, "group_ids": group_ids}

    mapping = reduce_step(out_path, MAPPING, [], no_result, joined, key, job)
    return None if mapping is None else (mapping, {**key, "mapping": mapping.digest})


def _require_held(missing: np.ndarray, spec: str) -> None:
    if len(missing):
        raise MergeGraphError(
            f"{spec}: lacks segment {missing[0]}, expected all that the graph joins. "
            "Was the graph made from another segmentation? Rerun agglomerate"
        )


def _report(largest: list[tuple[int, int, int, float]], out: str, groups_path: str | None) -> None:
    """Write the largest groups, and warn if one has taken a large part of the volume."""
    if groups_path is not None:
        lines = "".join(f"{group},{number},{size},{share:.4f}\n" for group, number, size, share in largest)
        atomic.write_text(groups_path, f"group_id,segments,voxels,share\n{lines}")
    if largest and largest[0][3] > WARN_SHARE:
        group, number, _, share = largest[0]
        log.warning(
            "%s: group %d has %d segments and %.0f %% of all labelled voxels, one neuron rarely has more than %.0f %%. "
            "Merging may have run away: look at it, and raise merge.threshold",
            *(out, group, number, 100 * share, 100 * WARN_SHARE),
        )


def _largest(group_ids: np.ndarray, voxels: np.ndarray, num_labelled: int) -> list[tuple[int, int, int, float]]:
    """Return the largest groups: id, number of segments, voxels, share of all labelled voxels."""
    groups, index, numbers = np.unique(group_ids, return_inverse=True, return_counts=True)
    sizes = np.zeros(len(groups), np.int64)
    np.add.at(sizes, index, voxels)
    order = np.argsort(-sizes, kind="stable")[:NUM_LISTED]
    return [(int(groups[k]), int(numbers[k]), int(sizes[k]), sizes[k] / num_labelled) for k in order]
