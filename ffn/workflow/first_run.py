"""The configuration of a first run, from what an image, its labels, weights and this machine say."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml
from pydantic import ValidationError

from ffn.config import ModelConfig, SubvolumesConfig
from ffn.errors import ConfigError, explain
from ffn.geometry import ZYX, Box, VoxelSize, doubt_about_size, extent_um, tile, zyx
from ffn.io.coarser import JUMPS, Scale, further_scales, levels_of
from ffn.io.foreign.locations import Location
from ffn.io.label_statistics import doubts_about_image
from ffn.io.open import voxel_sizes
from ffn.io.volume import Volume, is_ignored
from ffn.machine.limits import gpus_here, usable_cores
from ffn.model.store import DESCRIPTION, load_description
from ffn.model.tissue import SAME_SIZE
from ffn.options import option_name
from ffn.workflow import sources
from ffn.workflow.config_files import ROOT
from ffn.workflow.needs import flooding_here, in_words, training_here
from ffn.workflow.places import Place, open_run
from ffn.workflow.run import RunConfig, VolumeConfig
from ffn.workflow.sources import Source, find_image, find_labels, open_source

STARTERS = {"serial-sections": "mouse cortex", "fib-sem": "fly medulla"}  # folders of config/weights
FIRST_MINUTES = 4  # of training from other weights, and of flood filling, or a fifth of training; our choice
GOOD_STEPS, FOVS_PER_STEP = 50_000, 4  # 200,000 FOVs, as in config/own-data.yaml, whose recipe this is
FROM_SCRATCH = {"optimizer": "muon", "fov_policy": "faces", "schedule": "cosine"}
# Of the rates 3e-5 and 3e-4: the higher one made mergers in one of two boxes (docs/experiments.md).
FROM_WEIGHTS = {"learning_rate": 3e-5, "warmup_steps": 20, "fov_policy": "faces", "schedule": "cosine"}
AFFINITY_STEPS = 300  # from affinities of others; more spoil what they know (docs/experiments.md)
SAMPLED_SECTIONS = 64  # in which labels are looked for; our choice
MOST_SAMPLED = 4 * 10**9  # voxels of labels that are looked at; our choice
# Of the longest side of the labels, where training ends and validation: what labels allow, best first; our choice.
SHARES = ((0.7, 0.8), (0.8, 0.8), (1.0, 1.0))
MOST_MIPS = 5  # halved once more, pixels of 1 nm would be 64 nm
SPARSE = 0.5  # share of 0 among labels, above which it may not mean that there is no neurite; our choice


class Data(NamedTuple):
    """An image and its labels."""

    volume: dict[str, Any]  # the keys of the configuration
    image: Source
    seen: str  # type and grey levels, in words
    has_bytes: bool  # as its type, which is what CLAHE takes
    labelled: Box | None
    zeros: float  # share of 0 in that box


class Network(NamedTuple):
    """The network of a first run, what its weights were trained on, and affinities that were learnt there."""

    init: str | None
    model: ModelConfig
    normalize: str | None = None
    remark: str = ""
    affinities: str | None = None
    clahe_tile: int | None = None


def first_run(name: str, volume: Mapping[str, Any], init: str | None = None, hours: float | None = None) -> str:
    """Return the configuration of a first run as commented YAML.

    Parameters
    ----------
    name : str
        Name of the run and of its volume.
    volume : mapping
        Keys of `VolumeConfig` that are given: ``image``, and any of ``labels``, ``voxel_size_zyx_nm`` and the others.
    init : str, optional
        Weights to start from; default: those that we have, if they know such voxels, or if there are no labels.
    hours : float, optional
        How long training may take on this machine, 0 for none; default: what is usual.
    """
    data = _look(name, {key: value for key, value in volume.items() if value is not None}, init)
    refused: list[ConfigError] = []
    for network, values in _candidates(name, data, init, hours):
        try:
            run, places, _ = open_run(values)
        except ConfigError as error:
            refused.append(error)
            continue
        why = f"# Not trained: {str(refused[-1]).splitlines()[0]}\n" if refused and not run.train.max_steps else ""
        return why + _written(values, run, places[name], data, network)
    lines = "\n".join(map(str, refused[-2:])).splitlines()  # trained on all of the labels, and not trained
    raise ConfigError("\n".join(dict.fromkeys(lines)))


def _look(name: str, volume: dict[str, Any], init: str | None) -> Data:
    """Open the sources of a volume, at the mip that our weights know, and look at samples of them."""
    try:
        config = VolumeConfig(**volume)
    except ValidationError as error:
        raise ConfigError(explain(error, lambda path: option_name(path[0]) if path else "options")) from None
    image = find_image(name, config)
    size = [int(side) if side == int(side) else side for side in image.voxel_size_zyx_nm]
    volume = {**volume, "voxel_size_zyx_nm": size}
    if not init and len(voxel_sizes(str(config.image))) == 1 and (mip := _mip(image.voxel_size_zyx_nm)):
        volume |= {"mip": mip}
        config = VolumeConfig(**volume)
        image = find_image(name, config)
    with open_source(config, "image", config.mip, config.voxel_size_zyx_nm) as (grey, _):
        seen, has_bytes = _described(grey), grey.dtype == np.uint8
    labelled, zeros = _labelled(config, find_labels(name, config, image), image) if config.labels else (None, 0.0)
    return Data(volume, image, seen, has_bytes, labelled, zeros)


def _described(image: Volume) -> str:
    words = [f"{image.dtype}, {' × '.join(map(str, image.box.shape))} voxels"]
    if levels := levels_of(image, image.box):
        jumps = f"jump by {levels.jump:.2f} of that, ingest evens them" if levels.jump > JUMPS else "are even"
        words.append(f"median {levels.median:.0f}, quartiles {levels.spread:.0f} apart, sections {jumps}")
    return "; ".join([*words, *doubts_about_image(image)])


def _labelled(config: VolumeConfig, found: Source, image: Source) -> tuple[Box, float]:
    """Return the part of labels that is not 0 or ignored, and the share of 0 in it, by samples of sections."""
    box, offset = found.box.intersect(image.box), config.labels_offset_zyx
    if found.finer or Location.parse(str(config.labels)).path is None or box.num_voxels > MOST_SAMPLED:
        return box, 0.0
    sections = range(box.start[0], box.stop[0])  # labels may begin, end or all lie between samples of them
    step = math.ceil(len(sections) / SAMPLED_SECTIONS)
    with open_source(config, "labels", None, image.voxel_size_zyx_nm) as (labels, _):
        shift = zyx(np.subtract(labels.box.start, offset or labels.box.start))
        known = _known(labels, shift, box, sections[::step])
        near = {z + i for z in (min(known), max(known)) for i in range(1 - step, step)} if known else set(sections)
        rest = sorted(near & set(sections) - set(sections[::step]))
        known |= _known(labels, shift, box, rest)
    if not known:
        raise ConfigError(f"--labels: {config.labels} is 0 everywhere in {box}, expected ids. Is it the right file?")
    hull = Box.hull(part for part, _ in known.values())
    num_sections = sum(hull.start[0] <= z < hull.stop[0] for z in (*sections[::step], *rest))
    return hull, 1 - sum(count for _, count in known.values()) / (num_sections * math.prod(hull.shape[1:]))


def _known(labels: Volume, shift: ZYX, box: Box, sections: Sequence[int]) -> dict[int, tuple[Box, int]]:
    """Return the box and number of the voxels with an id in each section that has any."""
    known = {}
    for z in sections:
        section = Box((z, *box.start[1:]), (z + 1, *box.stop[1:]))
        voxels = labels.read(section.shift(shift))[0]
        rows, columns = np.nonzero((voxels != 0) & ~is_ignored(voxels))
        if len(rows):
            start, stop = (z, rows.min(), columns.min()), (z + 1, rows.max() + 1, columns.max() + 1)
            known[z] = Box(zyx(start), zyx(stop)).shift((0, *section.start[1:])), len(rows)
    return known


def _network(size: VoxelSize, init: str | None, is_trained: bool) -> Network:
    """Return the network of a first run; if it is not trained, it starts from weights, also from those of others."""
    name = "" if init else _starter(size)
    folder = Path(init or ROOT / "config/weights" / name)
    if init and not (folder / DESCRIPTION).is_file():  # a published checkpoint, which does not say what it knows
        return Network(init, ModelConfig())
    model = load_description(folder)
    tissue = model.trained_on
    other = tissue.other_size(size) if tissue else None
    if init is None and other and is_trained:
        return Network(None, ModelConfig(**sources.derived({}, size)["model"]))
    made = "" if init else f"ours, of {STARTERS[name]}" + ("" if is_trained else ", so expect little elsewhere")
    normalize = "match" if model.histogram else "volume"
    remark, affinities = "; ".join(filter(None, [made, other])), folder / "affinities.h5"
    known = str(affinities) if affinities.is_file() else None
    return Network(str(folder), model.config, normalize, remark, known, tissue.clahe_tile if tissue else None)


def _mip(size: VoxelSize) -> int:
    """Return the coarsest mip whose pixels our weights know, or finer ones."""
    tissue = load_description(ROOT / "config/weights" / _starter(size)).trained_on
    assert tissue
    known = SAME_SIZE * max(max(own[1:]) for own in tissue.voxel_sizes_zyx_nm)
    scales = further_scales(Scale(Box.from_shape((1, 1, 1)), size), MOST_MIPS)
    return sum(max(scale.voxel_size_zyx_nm[1:]) <= known for scale in scales)


def _starter(size: VoxelSize) -> str:
    """Return those of our weights whose voxels are most like `size`."""

    def away(name: str) -> float:
        tissue = load_description(ROOT / "config/weights" / name).trained_on
        assert tissue
        return min(float(np.abs(np.log(np.divide(size, own))).sum()) for own in tissue.voxel_sizes_zyx_nm)

    return min(STARTERS, key=away)


def _candidates(
    name: str, data: Data, init: str | None, hours: float | None
) -> Iterator[tuple[Network, dict[str, Any]]]:
    """Yield configurations, those first that need most labels, until training does without them."""
    size = data.image.voxel_size_zyx_nm
    if (box := data.labelled) and hours != 0:
        network = _network(size, init, True)
        train = _training(network, hours)
        usual = FIRST_MINUTES if network.init else training_here(network.model, GOOD_STEPS * FOVS_PER_STEP) / 5
        axis = max(range(3), key=lambda i: box.shape[i] / network.model.fov_size_zyx[i])
        for ends in SHARES:
            cuts = [box.start[axis] + round(share * box.shape[axis]) for share in (0, *ends, 1)]
            parts = [_part(box, axis, *pair) for pair in zip(cuts, cuts[1:], strict=False)]
            learnt, validated, held_out = (None if part.is_empty else str(part) for part in parts)
            rest = {"use_best": False} if not validated else {}
            test = _most(parts[2] if held_out else box, network.model, max(FIRST_MINUTES, usual), size)
            room = np.minimum(np.multiply(network.model.context_zyx, 2) + 1, data.image.box.shape)  # for `ffn round`
            around = test.middle(zyx(np.maximum(test.shape, room))).moved_into(data.image.box)
            boxes = {"train_box": learnt, "validate_box": validated or "none", "segment_box": str(around)}
            boxes |= {"evaluate_box": str(test) if held_out else "none"}
            yield network, _values(name, data, network, boxes, {**train, **rest})
    network = _network(size, init, False)
    around = box.grow(network.model.fov_size_zyx).intersect(data.image.box) if box else data.image.box
    test = _most(around, network.model, FIRST_MINUTES, size)  # in a box that is thinner than the FOV, it cannot move
    boxes = {"train_box": "none"} if data.labelled else {}
    yield network, _values(name, data, network, {**boxes, "segment_box": str(test)}, {"max_steps": 0})


def _training(network: Network, hours: float | None) -> dict[str, Any]:
    """Return the options of a training: a short one from other weights, else all that a good network needs."""
    of_step = training_here(network.model, FOVS_PER_STEP)
    within = 60 * hours if hours else FIRST_MINUTES
    steps = GOOD_STEPS if not hours and not network.init else min(max(200, int(within / of_step)), 4 * GOOD_STEPS)
    recipe = {"max_steps": steps, "batch_size": 2, **(FROM_WEIGHTS if network.init else FROM_SCRATCH)}
    if not network.init:
        recipe |= {"warmup_steps": steps // 20, "ema_decay": round(1 - 20 / steps, 6)}
    return {**recipe, "validation_steps": max(50, steps // (4 if network.init else 20)), "use_best": True}


def _part(box: Box, axis: int, start: int, stop: int) -> Box:
    is_cut = np.arange(3) == axis
    return Box(zyx(np.where(is_cut, start, box.start)), zyx(np.where(is_cut, stop, box.stop)))


def _most(box: Box, model: ModelConfig, within: float, size: VoxelSize) -> Box:
    """Return the middle of a box that takes no longer than some minutes to flood."""
    shape = list(box.shape)
    tiles = SubvolumesConfig(**sources.derived({}, size, model)["subvolumes"])
    while _flooding(model, Box.from_shape(zyx(shape)), tiles) > within:
        axis = max(range(3), key=lambda i: shape[i] * size[i])
        shape[axis] -= max(1, shape[axis] // 8)
    return box.middle(zyx(shape))


def _flooding(model: ModelConfig, box: Box, tiles: SubvolumesConfig) -> float:
    """Minutes that this machine is likely to take for the subvolumes of a box, which overlap."""
    return flooding_here(model, tile(box, tiles.size_zyx, tiles.overlap_zyx).num_voxels)


def _values(name: str, data: Data, network: Network, boxes: dict[str, Any], train: dict[str, Any]) -> dict[str, Any]:
    prepared: dict[str, Any] = {"normalize": network.normalize} if network.normalize else {}
    if network.clahe_tile and data.has_bytes:
        prepared["clahe_tile"] = network.clahe_tile
    init = {"init": network.init} if network.init else {}
    learnt = {"max_steps": AFFINITY_STEPS} if train["max_steps"] else {}
    known = {"network": network.affinities, **learnt} if network.affinities else {}
    affinities = {"affinities": {"enabled": True, **known}} if train["max_steps"] or known else {}
    return {"run": name, **init, "volumes": {name: {**data.volume, **boxes, **prepared}}, "train": train, **affinities}


def _written(values: dict[str, Any], run: RunConfig, place: Place, data: Data, network: Network) -> str:
    """Return a configuration with remarks on what was found, and on what nobody could know."""
    steps, costed = run.train.max_steps, network.model
    training = f"{in_words(training_here(costed, steps * run.train.num_lanes))} of training and " if steps else ""
    flooding = in_words(_flooding(costed, place.segment_box, run.subvolumes))
    whole = in_words(_flooding(costed, place.image, run.subvolumes))
    machine = f"{gpus_here()} GPUs" if gpus_here() else f"{usable_cores()} cores"
    remarks = {
        "image": extent_um(data.image.box.shape, data.image.voxel_size_zyx_nm),
        "mip": f"{' × '.join(f'{side:g}' for side in data.image.voxel_size_zyx_nm)} nm, boxes are in these voxels",
        "segment_box": "" if place.segment_box == place.image else f"all: about {whole} here",
        "train_box": "" if data.labelled is None else f"labels: {data.labelled}",
        "affinities": "ours, learnt on from your labels" if steps and network.affinities else "",
        "evaluate_box": "" if place.is_evaluated else "the labels leave nothing that is not trained on",
    }
    doubt = doubt_about_size(data.image.voxel_size_zyx_nm)
    text = [
        *([f"# Doubtful: {doubt}"] if doubt else []),
        f"# Image: {data.seen}",
        f"# About {training}{flooding} of flood filling on this machine ({machine}).",
        f"# Network: FOV {list(costed.fov_size_zyx)}, deltas {list(costed.deltas_zyx)}.",
        *([f"# Weights: {network.remark}."] if network.remark else []),
    ]
    for key, value in values.items():
        if key == "volumes":
            ((name, volume),) = value.items()
            text += ["volumes:", _line(name, None, {}, "  ").removesuffix(" null")]
            text += [_line(name, each, remarks, "    ") for name, each in volume.items()]
            if place.may_be_misplaced:
                text.append("    # labels_offset_zyx: [0, 0, 0]  # the place of their first voxel, as far as known")
        else:
            text.append(_line(key, value, remarks))
    if data.zeros > SPARSE:
        text.append(f"# unlabelled_weight: 0 in train, if 0 means not looked at: {data.zeros:.0%} of the labels are 0")
    if network.init and steps:
        good = in_words(training_here(costed, GOOD_STEPS * FOVS_PER_STEP))
        text.append(f"# A first look. A good network takes 200,000 FOVs: max_steps: {GOOD_STEPS}, about {good} here.")
    return "\n".join(text) + "\n"


def _line(key: str, value: Any, remarks: Mapping[str, str], indent: str = "") -> str:
    flow, width = (None, 110) if isinstance(value, list | dict) else (False, math.inf)  # a long path stays one line
    text = yaml.safe_dump({key: value}, default_flow_style=flow, sort_keys=False, allow_unicode=True, width=width)
    return indent + text.rstrip() + (f"  # {remarks[key]}" if remarks.get(key) else "")
