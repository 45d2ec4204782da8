"""Stage `evaluate`: score a segmentation and a baseline against the ground truth."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ffn.config import Mask
from ffn.errors import ConfigError, EvaluationError, under
from ffn.evaluation.baseline import KeptSweep, score_baseline, score_watershed
from ffn.evaluation.bodies import bodies_csv, worst_bodies
from ffn.evaluation.config import EvaluateConfig
from ffn.evaluation.errors import error_entries, errors_csv, worst_errors
from ffn.evaluation.intervals import change_intervals
from ffn.evaluation.scores import CONVENTIONS
from ffn.evaluation.scoring import Comparison, Scorer, ScoreTables
from ffn.evaluation.skeletons import check_skeletons, read_skeletons
from ffn.geometry import Box, VoxelSize
from ffn.io.atomic import write_json, write_text
from ffn.io.block_log import Result
from ffn.io.blocks import WHOLE, Job, add_job_options, forget_blocks, job_of, reduce_blocks
from ffn.io.masks import identities, mask_inputs, open_masked_truth
from ffn.io.open import identity, open_segmentation, open_volume
from ffn.io.store_names import jobs_folder
from ffn.io.volume import (
    NO_SIZE,
    Volume,
    require_inside,
    require_labels,
    require_other_file,
    require_same_voxel_size,
)
from ffn.options import (
    add_box_option,
    add_masks_option,
    add_options,
    add_volume_option,
    from_arguments,
    masks_from,
    whole_number,
)
from ffn.provenance import fingerprint, provenance

NUM_ERRORS = 20  # splits, and mergers, that are listed with their places; our choice


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Score a segmentation and a baseline against the ground truth: ARE, VOI, coverage, run length, worst errors."""
    add_volume_option(parser, "--segmentation", "labels to score")
    text = "name of the segmentation in its run, for tables: base, agglomerated or filled"
    parser.add_argument("--name", default="", metavar="NAME", help=text)
    text = "a segmentation that an earlier stage made, to score as well, such as base=seg.h5:segmentation; repeat"
    parser.add_argument("--earlier", action="append", default=[], metavar="NAME=VOLUME", help=text)
    add_volume_option(parser, "--truth", "labels of the ground truth")
    parser.add_argument(
        "--skeletons",
        metavar="PATH",
        help="skeletons of the ground truth, for the expected run length: a file of 'ffn skeletonize', an SWC file or "
        "a folder of them (x, y, z in nm), or a precomputed folder",
    )
    add_box_option(parser)
    parser.add_argument("--out", required=True, metavar="FILE.json", help="scores; two CSV files are added")
    text = "seed of the intervals (default: 1)"
    parser.add_argument("--rng-seed", type=whole_number, default=1, metavar="INT", help=text)
    group = parser.add_argument_group("baseline")
    one = group.add_mutually_exclusive_group()
    one.add_argument("--image", metavar="VOLUME", help="image to segment by watershed; the best of a sweep is scored")
    one.add_argument("--baseline", metavar="VOLUME", help="segmentation to score instead of a watershed")
    group.add_argument("--baseline-out", metavar="NAME.zarr", help="save the best watershed of --image")
    add_job_options(parser)
    add_masks_option(parser)
    add_options(parser, EvaluateConfig)
    parser.set_defaults(function=_run)


def _run(arguments: argparse.Namespace) -> None:
    if arguments.baseline_out and not arguments.image:
        raise ConfigError(f"--baseline-out: {arguments.baseline_out} is for a watershed, which needs --image")
    config = from_arguments(EvaluateConfig, arguments)
    inputs = Inputs(
        segmentation=arguments.segmentation,
        truth=arguments.truth,
        name=arguments.name,
        image=arguments.image if config.watershed else None,
        baseline=arguments.baseline,
        baseline_out=arguments.baseline_out,
        skeletons=arguments.skeletons,
        earlier=_parse_earlier(arguments.earlier),
        masks=masks_from(arguments),
    )
    evaluate(inputs, arguments.out, config, arguments.box, arguments.rng_seed, job_of(arguments))


def _parse_earlier(words: list[str]) -> dict[str, str]:
    earlier = {}
    for word in words:
        name, _, earlier[name] = word.partition("=")
        if not (name and earlier[name]):
            raise ConfigError(f"--earlier: {word!r} is incomplete, expected NAME=VOLUME")
    return earlier


@dataclass(frozen=True)
class Inputs:
    """A segmentation, its ground truth, and other volumes to compare it with.

    Parameters
    ----------
    segmentation, truth : str
        Volumes of integer labels.
    name : str
        Name of the segmentation in its run, such as ``filled``; recorded under the key ``segmentation``.
    image : str, optional
        Image to segment by watershed, as the baseline.
    baseline : str, optional
        Segmentation to use as the baseline instead.
    baseline_out : str, optional
        ``NAME.zarr`` to save the best watershed in.
    skeletons : str, optional
        Skeletons of the ground truth, for the expected run length; see `ffn.evaluation.skeletons.read_skeletons`.
    earlier : mapping of str to str
        Segmentations of earlier stages of the run, by their names.
    masks : tuple of Mask
        Voxels that are not scored.
    """

    segmentation: str
    truth: str
    name: str = ""
    image: str | None = None
    baseline: str | None = None
    baseline_out: str | None = None
    skeletons: str | None = None
    earlier: Mapping[str, str] = field(default_factory=dict)
    masks: tuple[Mask, ...] = ()

    def given(self) -> dict[str, str]:
        """Return the volumes and files that are read, by name, without the masks."""
        named = ("segmentation", "truth", "image", "baseline", "skeletons")
        return {name: spec for name in named if (spec := getattr(self, name))} | dict(self.earlier)

    def identities(self) -> dict[str, str]:
        """Return texts that change with the content of everything that blocks compare, in its order."""
        specs = {name: self.given()[name] for name in ("segmentation", "truth", "skeletons") if name in self.given()}
        return identities(specs | {f"earlier {i}": v for i, v in enumerate(self.earlier.values())}, self.masks)

    def require_no_output(self, *written: str | None) -> None:
        """Raise if an output is also an input."""
        read = [*self.given().values(), *self.earlier.values(), *(mask.path for mask in self.masks if mask.path)]
        for path in filter(None, written):
            require_other_file(path, *read)


def check(skeletons: str, voxel_size_zyx_nm: VoxelSize) -> None:
    """Refuse skeletons of the ground truth that cannot be read."""
    with under("skeletons"):
        check_skeletons(skeletons, voxel_size_zyx_nm)


def evaluate(
    inputs: Inputs,
    out: str | Path,
    config: EvaluateConfig,
    box: Box | None = None,
    rng_seed: int = 1,
    job: Job = WHOLE,
) -> dict[str, Any]:
    """Score a segmentation where it overlaps the ground truth, and write the scores as JSON.

    Blocks give the pairs of body and segment and the segments along skeletons, from which the scores follow. The last
    job makes the baseline, and reads those blocks again that can hold the worst errors.

    Parameters
    ----------
    inputs : Inputs
        Volumes and files to read. The scores of a baseline, on the same voxels, are under the key ``baseline``, those
        of earlier segmentations under the key ``earlier``.
    out : path
        JSON file to write. Its keys are in docs/outputs.md. Two CSV files are written to the same folder:
        ``<name>-bodies.csv``, the cost of every body and segment, and ``<name>-errors.csv``.
    config : EvaluateConfig
        Border band, limits of the baseline.
    box : Box, optional
        Part of the volumes to score.
    rng_seed : int
        Fixes the intervals.
    job : Job
        Which blocks to compare, and whether to score; see `ffn.io.blocks`.

    Returns
    -------
    dict
        The content of the JSON file; empty if `job` does not finish.

    Raises
    ------
    EvaluationError
        If the volumes and `box` share no voxel, the ground truth is empty there, or `out` cannot be written.
    VolumeError
        If a volume is missing, has no integer type or another voxel size, or an output would overwrite an input.
    """
    inputs.require_no_output(str(out), inputs.baseline_out)
    if inputs.name in inputs.earlier:
        raise ConfigError(f"--earlier: {inputs.name!r} is also the --name of the segmentation, expected another name")
    _require_writable(out)
    with (
        open_masked_truth(inputs.truth, inputs.masks) as truth,
        open_segmentation(inputs.segmentation) as segmentation,
        contextlib.ExitStack() as volumes,
    ):
        require_labels(segmentation)
        place = common_box(segmentation, truth, box)
        size = _voxel_size(truth, segmentation, config, inputs.skeletons)
        skeletons = read_skeletons(inputs.skeletons, size) if inputs.skeletons else None
        scorer = Scorer(truth, size, config, skeletons, rng_seed)
        earlier = {key: volumes.enter_context(open_segmentation(spec)) for key, spec in inputs.earlier.items()}
        for volume in earlier.values():
            require_labels(volume)
            require_inside(volume, place)
        reads = [volume.read for volume in (segmentation, *earlier.values())]
        comparison = Comparison(scorer, reads, place)
        about = {**inputs.identities(), "box": place, "size": size, "border_nm": config.border_nm}
        key = fingerprint("evaluate", None, **about)
        results = reduce_blocks(str(out), comparison.blocks, comparison.look, key, job)
        if results is None:
            return {}
        result, bodies = _scores(scorer, comparison, results, [inputs.name, *earlier])
        result = {"box": str(place), "segmentation": inputs.name, **result}
        segmentations = {**earlier, inputs.name or "segmentation": segmentation}
        kept = KeptSweep(jobs_folder(str(out), "baseline") / "sweep.json", key)
        baseline = _score_baseline(inputs, scorer, segmentations, place, kept)
        if baseline:
            result["baseline"] = baseline
        given = {**inputs.given(), **mask_inputs(inputs.masks), "rng_seed": rng_seed}
        result["provenance"] = provenance("evaluate", config, **given)
        _write(Path(out), result, bodies)
    forget_blocks(str(out))
    return result


def _scores(
    scorer: Scorer, comparison: Comparison, results: Sequence[Result], names: Sequence[str]
) -> tuple[dict[str, Any], str]:
    """Return the scores that follow from the blocks, and the table of bodies. The first name is scored."""
    compared = dict(zip(names, comparison.add_up(results), strict=True))
    scores = {key: scorer.scores(one) for key, one in compared.items()}
    table = compared[names[0]].tables.all
    errors = worst_errors(table, NUM_ERRORS)
    result: dict[str, Any] = {
        "border_nm": scorer.config.border_nm,
        "conventions": {name: rule.text for name, rule in CONVENTIONS.items()},
        **scores.pop(names[0]),
        "earlier": scores,
        **worst_bodies(table),
        "errors": error_entries(errors, comparison.places([error.parts for error in errors], results)),
    }
    if scores:
        tables = {key: compared[key].tables for key in (*scores, names[0])}
        result["changes"] = _changes(tables, scorer.rng_seed)
    return result, bodies_csv(table)


def _changes(tables: Mapping[str, ScoreTables], rng_seed: int) -> list[dict[str, Any]]:
    """Return the change of each score from one stage to the next, as 95 % intervals by convention."""
    return [
        {
            "from": first,
            "to": second,
            "intervals": {
                name: change_intervals(tables[first].of(name), tables[second].of(name), name, rng_seed)
                for name in CONVENTIONS
            },
        }
        for first, second in itertools.pairwise(tables)
    ]


def common_box(segmentation: Volume, truth: Volume, box: Box | None) -> Box:
    """Return the box that both volumes cover, within `box` if given; an error if there is none."""
    require_same_voxel_size(segmentation, truth)
    common = segmentation.box.intersect(truth.box)
    if common.is_empty:
        raise EvaluationError(
            f"{segmentation.name}: covers {segmentation.box} and the truth {truth.name} covers {truth.box}, "
            "expected boxes that overlap. Check the offsets with 'ffn info'"
        )
    if box is not None and common.intersect(box).is_empty:
        raise EvaluationError(
            f"--box: {box} lies outside {common}, where segmentation and truth overlap. Choose a box inside"
        )
    return common if box is None else common.intersect(box)


def _score_baseline(
    inputs: Inputs, scorer: Scorer, segmentations: Mapping[str, Volume], box: Box, kept: KeptSweep
) -> dict[str, Any] | None:
    """Score the given baseline, or the best watershed of the image; return None if neither is given."""
    if inputs.baseline:
        with open_segmentation(inputs.baseline) as volume:
            require_labels(volume)
            require_same_voxel_size(volume, scorer.truth)
            require_inside(volume, box)
            reads = {name: segmentation.read for name, segmentation in segmentations.items()}
            return {"method": volume.name, "box": str(box), **score_baseline(scorer, volume.read, reads, box)}
    if not inputs.image:
        return None
    with open_volume(inputs.image) as image:
        require_inside(image, box)
        depends_on = {"image": identity(inputs.image), "max_voxels": scorer.config.watershed_max_voxels}
        kept = kept._replace(key={**kept.key, **depends_on})
        return score_watershed(scorer, image, segmentations, box, kept, inputs.baseline_out)


def _write(out: Path, result: dict[str, Any], bodies: str) -> None:
    """Write the scores last, so that their file implies the others."""
    write_text(out.with_name(f"{out.stem}-bodies.csv"), bodies)
    write_text(out.with_name(f"{out.stem}-errors.csv"), errors_csv(result["errors"]))
    write_json(out, result)


def _voxel_size(truth: Volume, segmentation: Volume, config: EvaluateConfig, skeletons: str | None) -> VoxelSize:
    """Return the voxel size of either volume, or (1, 1, 1) if neither has one and no length is measured."""
    size = truth.voxel_size_zyx_nm or segmentation.voxel_size_zyx_nm
    if size is None and (config.border_nm or skeletons):
        where = f"--border: {config.border_nm} nm" if config.border_nm else f"--skeletons: {skeletons}"
        raise EvaluationError(
            f"{where} cannot be measured: neither {truth.name} nor {segmentation.name} has a voxel size, "
            "one is needed. Ingest one of them with 'ffn ingest --voxel-size', or give --border 0 and no --skeletons"
        )
    return size or NO_SIZE


def _require_writable(out: str | Path) -> None:
    """Report an output that cannot be written before the work starts."""
    path = Path(out).absolute()
    folder = next(parent for parent in path.parents if parent.exists())
    if path.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        found = "is a folder" if path.is_dir() else f"{folder} is not a writable folder"
        raise EvaluationError(f"{out}: {found}, expected the name of a new file. Choose another --out")
