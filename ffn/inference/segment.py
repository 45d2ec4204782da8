"""Segment boxes of an image: read, seed, flood, write."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import logging
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from ffn.config import ImageConfig, SegmentConfig, SubvolumesConfig, flooding_model
from ffn.errors import ConfigError, SegmentError
from ffn.geometry import ZYX, Box, Grid, tile, zyx
from ffn.inference.canvas import Frame
from ffn.inference.inputs import SegmentInputs, add_flood_inputs, check, flood_inputs, read_points
from ffn.inference.lanes import Lanes, open_lanes, run_jobs
from ffn.inference.subvolume import Common, SubvolumeFlood, fingerprint
from ffn.io.blocks import WHOLE, Job, add_job_options, job_of, make_files
from ffn.io.open import identity, open_volume
from ffn.io.store import require_replaceable
from ffn.io.store_names import MAIN
from ffn.io.volume import Volume, require_image, require_inside, require_other_file
from ffn.machine.gpu import jax_device, results_depend_on
from ffn.machine.limits import threads_here
from ffn.machine.processes import handling
from ffn.model.choice import FOLDER
from ffn.model.store import load_description, load_model
from ffn.model.tissue import HISTOGRAM_DTYPES, survey_of
from ffn.options import add_box_option, add_options, box_value, from_arguments
from ffn.progress import progress_bar

log = logging.getLogger(__name__)

NAMES = {MAIN, "probability", "origins", "overlaps", "given"}  # in a store
SHOW_SECONDS, SHOW_SHARE = 0.2, 0.01  # between updates of the bar, at least, and of the time for them, at most


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flood-fill a box of an image: grow an object from every seed until the network finds no more of it.

    example:
      ffn segment --image raw.zarr --model model/ --box 0:128,0:128,0:128 --out seg.zarr
    """
    add_flood_inputs(parser)
    add_box_option(parser)
    text = "box of which --box is a subvolume: beyond its faces, FOVs see how the image goes on (default: --box)"
    parser.add_argument("--within", type=box_value, metavar="Z0:Z1,Y0:Y1,X0:X1", help=text)
    text = (
        "uint64 segmentation of the box, NAME.zarr; FOLDER/ cuts the box into overlapping subvolumes, with a store "
        "each, for 'ffn reconcile'"
    )
    parser.add_argument("--out", required=True, metavar="VOLUME", help=text)
    add_options(parser, SubvolumesConfig)
    add_job_options(parser)
    add_options(parser, ImageConfig, skip=("normalize",))
    add_options(parser, SegmentConfig)


def run(arguments: argparse.Namespace) -> None:
    """Run the command."""
    config, job, out = from_arguments(SegmentConfig, arguments), job_of(arguments), arguments.out
    inputs = SegmentInputs(**flood_inputs(arguments), init_segmentation=arguments.init_segmentation)
    if out.endswith("/"):
        if arguments.within:
            raise ConfigError(f"--within: is for one subvolume, {out} gets those of --box. Leave it out")
        segment_subvolumes(inputs, out, config, from_arguments(SubvolumesConfig, arguments), arguments.box, job)
    elif job != WHOLE or arguments.size_zyx or arguments.overlap_zyx:
        raise ConfigError(f"--out: {out} is a file, --size, --overlap and --job need --out FOLDER/")
    else:
        segment(inputs, out, config, arguments.box, arguments.within)


def segment(
    inputs: SegmentInputs, out: str, config: SegmentConfig, box: Box | None = None, within: Box | None = None
) -> None:
    """Flood-fill a box and write its segmentation, probabilities, origins and overlaps.

    The store holds the segmentation (uint64), ``probability`` (uint8), ``origins`` (id, seed z, y, x in full-volume
    voxels, FOVs, pass) and ``overlaps`` (id, earlier id, first voxel of a cell, voxels in it; see
    `ffn.geometry.cell_shape`). During the run, ``<out>.checkpoint`` holds the state. After a kill, the same call
    resumes from it, and the output is the same, byte for byte.

    The box, by default the whole image, takes about 17 bytes of memory per voxel while seeds are found, then 15 while
    it is on a canvas, including what FOVs see around it. It is a subvolume of `within`, see `Frame.of`.
    """
    require_replaceable(out, NAMES)  # not after the flood: its checkpoint is of this output
    require_other_file(out, *inputs.files())
    with open_volume(inputs.image) as volume:
        box = box or volume.box
        if within is not None:
            require_inside(volume, within)
            if not within.contains(box):
                raise ConfigError(f"--within: {within} does not contain --box {box}")
        common = _checked(volume, [box], inputs, config, within)
    common, lanes = _opened(common, 1)
    _flood_all([SubvolumeFlood(common, box, out)], lanes, config, 1)


def segment_subvolumes(
    inputs: SegmentInputs,
    folder: str,
    config: SegmentConfig,
    tiles: SubvolumesConfig,
    box: Box | None = None,
    job: Job = WHOLE,
) -> None:
    """Flood-fill overlapping subvolumes of a box, each into a store ``z…-y…-x….zarr`` with the bytes of `segment`.

    Subvolumes that are finished are skipped, so a killed call loses only those that it had begun.

    They cover the box, by default the whole image. Records of those that are finished are in the folder, too, and so is
    ``machine``, unless the inputs name another one.
    """
    inputs = replace(inputs, machine=inputs.machine or f"{folder}{FOLDER}")
    with open_volume(inputs.image) as volume:
        within = box or volume.box
        boxes = tile(within, tiles.size_zyx, tiles.overlap_zyx)
        _require_overlap(boxes, tiles.overlap_zyx, load_model(inputs.model).config.fov_size_zyx)
        common = _checked(volume, _of_all_shapes(boxes), inputs, config, within)
    key = fingerprint(config, {**common.key, "within": within, "size": boxes[0].shape})
    with make_files(folder, ".zarr", boxes, key, job) as left:
        taken = iter(left)
        first = next(taken, None)
        if first is None:
            return
        common, lanes = _opened(common, -(-len(boxes) // max(1, job.of)))
        jobs = (SubvolumeFlood(common, box, f"{folder}{box.stem}.zarr") for box in itertools.chain([first], taken))
        _flood_all(jobs, lanes, config, left.num_left, lambda box: left.finish(box, {}))


def _flood_all(
    jobs: Iterable[SubvolumeFlood],
    lanes: Lanes,
    config: SegmentConfig,
    num_jobs: int,
    finished: Callable[[Box], None] = lambda box: None,
) -> None:
    """Flood all subvolumes, and write each as soon as it is done. After SIGTERM, all states are saved."""
    progress, sigterm = _Progress(num_jobs), threading.Event()

    def save(num_fovs: int, active: Collection[SubvolumeFlood]) -> None:
        stops = sigterm.is_set()  # it may arrive while states are being saved, and then counts after the next step
        for job in active:
            job.checkpoint.save_when_due(job.flood.state, stops)
        if stops and active:
            path = next(iter(active)).checkpoint.path
            raise SegmentError(f"{path}: stopped by SIGTERM, the state is saved. Run the same command to resume")
        progress.show(num_fovs, active)

    # the bar is closed first, so that the line of an error is the last one
    with handling([signal.SIGTERM], lambda number, frame: sigterm.set()), contextlib.closing(progress):
        for job in run_jobs(jobs, lanes, threads_here(), save):
            job.write()
            finished(job.box)
            job.checkpoint.remove()
            progress.finish(job)
            job.leave()


class _Progress:
    """A bar of the seeds that are settled, with FOVs/s, over all subvolumes: as if each had as many as those begun."""

    def __init__(self, num_jobs: int) -> None:
        self._num_jobs = num_jobs
        self._num_finished = self._num_fovs = self._num_seeds = 0  # seeds of finished subvolumes
        self._start, self._due = time.monotonic(), 0.0
        self._bar = progress_bar(0, "segment", "seed")
        self._bar.smoothing = 0  # seeds settle by hundreds, when a large object has grown, or not at all

    def finish(self, job: SubvolumeFlood) -> None:
        self._num_finished += 1
        self._num_seeds += job.flood.counters["seeds"]

    def show(self, num_fovs: int, active: Collection[SubvolumeFlood]) -> None:
        self._num_fovs += num_fovs
        now, cpu = time.monotonic(), time.thread_time()  # a terminal that waits costs nothing
        if active and now < self._due:  # formatting the text at every FOV would cost more than the flood itself
            return
        rate = self._num_fovs / max(now - self._start, 1e-9)
        text = f"{self._num_fovs} FOVs, {rate:.1f} FOVs/s, {self._num_finished} of {self._num_jobs} subvolumes"
        self._bar.set_postfix_str(text, refresh=False)
        before = self._num_seeds, self._num_seeds
        settled, known = map(sum, zip(before, *(job.flood.settled_and_known for job in active), strict=True))
        begun = self._num_finished + len(active)
        self._bar.total = known * max(self._num_jobs, begun) // begun  # more have begun where this job helps others
        if not self._due:
            self._bar.initial = settled  # masked, or before the flood was stopped: they took no time
        self._bar.update(settled - self._bar.n)
        self._due = now + max(SHOW_SECONDS, (time.thread_time() - cpu) / SHOW_SHARE)

    def close(self) -> None:
        self._bar.update(max(0, self._num_seeds - self._bar.n))
        self._bar.close()


def _checked(
    volume: Volume, boxes: Sequence[Box], inputs: SegmentInputs, config: SegmentConfig, within: Box | None
) -> Common:
    """Check all inputs, and return what the floods of `boxes`, or of boxes of these shapes, have in common."""
    require_image(volume)
    for box in boxes:
        require_inside(volume, box)
    model = flooding_model(load_model(inputs.model).config, config)
    frames = [Frame.of(box, volume.box, model, config.mirror, within) for box in boxes]
    check(volume.box, frames, volume.voxel_size_zyx_nm, inputs, config, model)
    network = replace(inputs.network(config), padding=_padding(volume, within or boxes[0], inputs))
    points, named = None, None
    if config.seed_points is not None:
        points, named = read_points(config.seed_points), identity(config.seed_points)
    shape = zyx(map(max, zip(*(frame.canvas.shape for frame in frames), strict=True)))
    return Common(inputs, network, config, points, {**inputs.key(network), "points": named}, within, shape)


def _padding(volume: Volume, box: Box, inputs: SegmentInputs) -> tuple[int, ...]:
    """Return the grey levels of padding; warn of it, and of an image that is not like the training data."""
    trained_on = load_description(inputs.model).trained_on
    if trained_on is None:
        log.info("%s: records no voxel size and no side of membranes, so neither is compared", inputs.model)
    elif other := trained_on.other_size(volume.voxel_size_zyx_nm):
        log.warning("%s: %s", inputs.image, other)
    if inputs.normalization:
        known = json.loads(Path(inputs.normalization).read_text())
        lines, padding = [known["warning"]] if known.get("warning") else [], known.get("padding", [])
    elif volume.dtype in HISTOGRAM_DTYPES:
        seen = survey_of(inputs.image, inputs.masks, box)
        lines, padding = seen.complaints(inputs.image, trained_on), list(seen.padding)
    else:
        return ()
    for line in lines:
        log.warning("%s: %s", inputs.image, line)
    return tuple(padding)


def _opened(common: Common, num_boxes: int) -> tuple[Common, Lanes]:
    """Open canvases for so many floods; results depend on them, too: others may round otherwise."""
    with open_volume(common.inputs.image) as volume:
        lanes = open_lanes(common.network, common.config, num_boxes, common.shape_zyx, volume.dtype)
    key = {**common.key, "engine": lanes.name, "canvases": lanes.size}
    if common.network.choice.engine == "jax":
        key["device"] = results_depend_on(jax_device())
    return replace(common, key=key, engine=lanes.name), lanes


def _of_all_shapes(boxes: Grid) -> list[Box]:
    """Return boxes that have every range of each axis between them, so all shapes of boxes and canvases."""
    number = max(map(len, boxes.ranges_zyx))
    columns = [[ranges[min(k, len(ranges) - 1)] for k in range(number)] for ranges in boxes.ranges_zyx]
    return [Box((z[0], y[0], x[0]), (z[1], y[1], x[1])) for z, y, x in zip(*columns, strict=True)]


def _require_overlap(boxes: Grid, overlap_zyx: ZYX, fov_size_zyx: ZYX) -> None:
    """Refuse neighbours that share less than a FOV, as the configuration of a run does."""
    for axis, ranges, overlap, fov in zip("zyx", boxes.ranges_zyx, overlap_zyx, fov_size_zyx, strict=True):
        if len(ranges) > 1 and overlap < fov:
            found = f"overlap_zyx: {overlap} on axis {axis} is less than the FOV ({fov})"
            raise ConfigError(f"{found}, so neighbours would not share voxels that both can reach")
