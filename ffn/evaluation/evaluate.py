"""Stage `evaluate`: score a segmentation and a baseline against the ground truth."""

from __future__ import annotations

import argparse
import contextlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ffn.config import Mask
from ffn.errors import ConfigError, EvaluationError, under
from ffn.evaluation.baseline import score_watershed
from ffn.evaluation.config import EvaluateConfig
from ffn.evaluation.errors import locate, worst_errors
from ffn.evaluation.scores import BORDER_NM, CONVENTIONS
from ffn.evaluation.scoring import Compared, Comparison
from ffn.evaluation.skeletonize import Skeletons, read_skeletons
from ffn.geometry import Box, VoxelSize
from ffn.io.atomic import write_json
from ffn.io.block_log import Result
from ffn.io.blocks import WHOLE, Job, add_job_options, forget_blocks, job_of, reduce_blocks
from ffn.io.label_statistics import doubts_about_labels
from ffn.io.masks import MaskedTruth, identities, mask_inputs, open_masked_truth
from ffn.io.open import open_segmentation, open_volume
from ffn.io.volume import NO_SIZE, Volume, require_inside, require_labels, require_other_file, require_same_voxel_size
from ffn.options import (
    add_box_option,
    add_masks_option,
    add_options,
    add_volume_option,
    from_arguments,
    masks_from,
    parse_named,
    whole_number,
)
from ffn.provenance import fingerprint, provenance

log = logging.getLogger(__name__)

NUM_ERRORS = 20  # splits, and mergers, that are listed with their places; our choice


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Score a segmentation and a baseline against the ground truth: ARE, VOI, coverage, run length, worst errors.

    example:
      ffn evaluate --segmentation seg.zarr --truth labels.zarr --image raw.zarr --out scores.json
    """
    add_volume_option(parser, "--segmentation", "labels to score")
    text = "name of the segmentation in its run, for tables: base, agglomerated or filled"
    parser.add_argument("--name", default="", metavar="NAME", help=text)
    text = "a segmentation that an earlier stage made, to score as well, such as base=seg.h5:segmentation; repeat"
    parser.add_argument("--earlier", action="append", default=[], metavar="NAME=VOLUME", help=text)
    add_volume_option(parser, "--truth", "labels of the ground truth")
    text = "skeletons of the ground truth, for the expected run length: a file of 'ffn skeletonize', an SWC file, or "
    parser.add_argument("--skeletons", metavar="PATH", help=text + "a folder of them (x, y, z in nm)")
    add_box_option(parser)
    parser.add_argument("--out", required=True, metavar="FILE.json", help="scores to write")
    text = "seed of the intervals (default: 1)"
    parser.add_argument("--rng-seed", type=whole_number, default=1, metavar="INT", help=text)
    text = "image to segment by watershed, as a baseline; the best of a sweep is scored"
    parser.add_argument("--image", metavar="VOLUME", help=text)
    parser.add_argument("--baseline-out", metavar="NAME.zarr", help="save the best watershed of --image")
    add_job_options(parser)
    add_masks_option(parser)
    add_options(parser, EvaluateConfig)


def run(arguments: argparse.Namespace) -> None:
    """Run the command."""
    if arguments.baseline_out and not arguments.image:
        raise ConfigError(f"--baseline-out: {arguments.baseline_out} is for a watershed, which needs --image")
    config = from_arguments(EvaluateConfig, arguments)
    inputs = Inputs(
        segmentation=arguments.segmentation,
        truth=arguments.truth,
        name=arguments.name,
        image=arguments.image if config.watershed else None,
        baseline_out=arguments.baseline_out,
        skeletons=arguments.skeletons,
        earlier=parse_named("--earlier", arguments.earlier),
        masks=masks_from(arguments),
    )
    evaluate(inputs, arguments.out, config, arguments.box, arguments.rng_seed, job_of(arguments))


@dataclass(frozen=True)
class Inputs:
    """A segmentation, its ground truth, and other volumes to compare it with."""

    segmentation: str  # labels
    truth: str  # labels
    name: str = ""  # of the segmentation in its run, such as ``filled``
    image: str | None = None  # to segment by watershed, as the baseline
    baseline_out: str | None = None  # ``NAME.zarr`` for the best watershed
    skeletons: str | None = None  # of the truth, for the run length, see `ffn.evaluation.skeletonize.read_skeletons`
    earlier: Mapping[str, str] = field(default_factory=dict)  # segmentations of earlier stages of the run by name
    masks: tuple[Mask, ...] = ()  # voxels that are not scored

    def given(self) -> dict[str, str]:
        """Return the volumes and files that are read, by name, without the masks."""
        named = ("segmentation", "truth", "image", "skeletons")
        return {name: spec for name in named if (spec := getattr(self, name))} | dict(self.earlier)

    def identities(self) -> dict[str, str]:
        """Return texts that change with the content of everything that blocks compare, in its order."""
        specs = {name: self.given()[name] for name in ("segmentation", "truth", "skeletons") if name in self.given()}
        return identities(specs | {f"earlier {i}": v for i, v in enumerate(self.earlier.values())}, self.masks)


def check(skeletons: str, voxel_size_zyx_nm: VoxelSize) -> None:
    """Refuse skeletons of the ground truth that cannot be read."""
    with under("skeletons"):
        read_skeletons(skeletons, voxel_size_zyx_nm)


def evaluate(
    inputs: Inputs, out: str | Path, config: EvaluateConfig, box: Box | None = None, rng_seed: int = 1, job: Job = WHOLE
) -> dict[str, Any]:
    """Score a segmentation where it overlaps the ground truth; write the scores as JSON, and return them.

    The last job makes the baseline, and reads those blocks again that hold the worst errors.

    The JSON file is described in docs/outputs.md. `rng_seed` fixes the intervals. A job that compares blocks alone
    returns nothing.
    """
    for written in filter(None, (str(out), inputs.baseline_out)):
        require_other_file(written, *inputs.given().values(), *(mask.path for mask in inputs.masks if mask.path))
    if inputs.name in inputs.earlier:
        raise ConfigError(f"--earlier: {inputs.name!r} is also the --name of the segmentation, expected another name")
    specs = {**inputs.earlier, inputs.name or "segmentation": inputs.segmentation}
    with open_masked_truth(inputs.truth, inputs.masks) as truth, contextlib.ExitStack() as stack:
        segmentations = {name: stack.enter_context(open_segmentation(spec)) for name, spec in specs.items()}
        place = common_box(list(segmentations.values())[-1], truth, box)
        for volume in segmentations.values():
            require_labels(volume)
            require_inside(volume, place)
        comparison = _comparison(truth, segmentations, inputs.skeletons, place, rng_seed)
        key = fingerprint("evaluate", None, **inputs.identities(), box=place, conventions=comparison.conventions)
        results = reduce_blocks(str(out), comparison.blocks, comparison.look, key, job)
        if results is None:
            return {}
        for volume in (*segmentations.values(), truth):
            for doubt in doubts_about_labels(volume, place):
                log.warning("%s: %s", volume.name, doubt)
        compared = dict(zip(segmentations, comparison.add_up(results), strict=True))
        result = {"box": str(place), "segmentation": inputs.name, **_scores(comparison, compared)}
        result["errors"] = _errors(compared, comparison, results)
        if inputs.image:
            with open_volume(inputs.image) as image:
                most, saved = config.watershed_max_voxels, inputs.baseline_out
                result["baseline"] = score_watershed(comparison, image, list(segmentations), most, saved)
    given = {**inputs.given(), **mask_inputs(inputs.masks), "rng_seed": rng_seed}
    result["provenance"] = provenance("evaluate", config, **given)
    write_json(out, result)
    forget_blocks(str(out))
    return result


def _scores(comparison: Comparison, compared: Mapping[str, Compared]) -> dict[str, Any]:
    """Return the scores that follow from the blocks. The last segmentation is scored, the others are earlier ones."""
    *earlier, own = map(comparison.scores, compared.values())
    return {
        "border_nm": BORDER_NM,
        "conventions": {name: CONVENTIONS[name].text for name in comparison.conventions},
        **own,
        "earlier": dict(zip(compared, earlier, strict=False)),
    }


def _errors(
    compared: Mapping[str, Compared], comparison: Comparison, results: Sequence[Result]
) -> list[dict[str, Any]]:
    """Return the worst errors of the last segmentation, with the ends of their gaps."""
    *_, own = compared.values()
    errors = worst_errors(own.tables["foreground"], own.bodies, NUM_ERRORS)
    found = locate(errors, comparison.tables_of_last(results), comparison.scene())
    return [error.entry(*ends) for error, ends in zip(errors, found, strict=True)]


def common_box(segmentation: Volume, truth: Volume, box: Box | None) -> Box:
    """Return the box that both volumes cover, within `box` if given; an error if there is none."""
    require_same_voxel_size(segmentation, truth)
    common = segmentation.box.intersect(truth.box)
    if common.is_empty:
        found = f"{segmentation.name}: covers {segmentation.box} and the truth {truth.name} covers {truth.box}"
        raise EvaluationError(f"{found}, expected boxes that overlap. Check the offsets with 'ffn info'")
    if box is not None and common.intersect(box).is_empty:
        raise EvaluationError(f"--box: {box} lies outside {common}, which segmentation and truth share. Choose another")
    if segmentation.provenance.get("stage", "ingest") == "ingest":  # of another program
        _doubt_place(segmentation, truth)
        _doubt_place(truth, segmentation)
    return common if box is None else common.intersect(box)


def _doubt_place(volume: Volume, other: Volume) -> None:
    is_given = volume.provenance.get("config", {}).get("offset_zyx") is not None
    if volume.box.start == (0, 0, 0) and not is_given and not volume.box.contains(other.box):
        text = "%s: covers %s from the origin on, as volumes without a known place do, and %s covers %s"
        log.warning(text + ". 'ffn ingest --offset' gives it another", volume.name, volume.box, other.name, other.box)


def _comparison(
    truth: MaskedTruth, segmentations: Mapping[str, Volume], skeletons_path: str | None, box: Box, rng_seed: int
) -> Comparison:
    """Return the comparison; without a voxel size, without the convention ``cremi`` and without skeletons."""
    size = truth.voxel_size_zyx_nm or list(segmentations.values())[-1].voxel_size_zyx_nm
    skeletons = None
    if skeletons_path:
        if size is None:
            found = f"--skeletons: {skeletons_path} is in nm, and {truth.name} has no voxel size, one is needed"
            raise EvaluationError(f"{found}. Ingest it with 'ffn ingest --voxel-size'")
        skeletons = _skeletons_near(skeletons_path, box, size)
    if size is None:
        log.warning("%s: has no voxel size, so there are no scores under the convention cremi", truth.name)
    conventions = [name for name in CONVENTIONS if size or name != "cremi"]
    reads = [volume.read for volume in segmentations.values()]
    return Comparison(truth, reads, box, size or NO_SIZE, skeletons, rng_seed, conventions)


def _skeletons_near(path: str, box: Box, voxel_size_zyx_nm: VoxelSize) -> Skeletons | None:
    """Read skeletons, some of which must lie in the box; None if `ffn skeletonize` found none."""
    skeletons = read_skeletons(path, voxel_size_zyx_nm)
    if not len(skeletons.edges):
        return None
    if not skeletons.crop(box, voxel_size_zyx_nm).edge_lengths_nm().any():
        found = f"--skeletons: none of {len(np.unique(skeletons.owners))} lies in {box}, at least one is needed"
        raise EvaluationError(f"{found}. Are they in nanometres from the volume's origin?")
    return skeletons
