"""The first look at a run, before it trains: image, labels and membranes, and whether they fit together."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from scipy import ndimage

from ffn.geometry import Box, doubt_about_size, extent_um
from ffn.io.coarser import levels_of
from ffn.io.open import open_truth, open_volume
from ffn.io.section_faults import read_faults
from ffn.io.volume import Volume, volume_in, voxel_size_of
from ffn.report import pictures
from ffn.workflow.paths import RunPaths

# Of the middle of the labels, which flips and transposes map onto itself, voxels; our choice.
WINDOW, WINDOW_OF_CUBE = (48, 256, 256), (128, 128, 128)
SHIFTS = (-2, -1, 1, 2)  # sections
FINE, COARSE = (0, 1.5, 1.5), (0, 6, 6)  # standard deviations between which membranes are seen, voxels; our choice
# Another place is better if membranes are so many times as strong there. Shifted by 2 sections, FIB-25 (z < 100) has
# 0.75 of the contrast, by 1 section 0.92; SNEMI3D (z < 32) 0.07 and 0.44.
CLEARER = 1.15
# Contrast of membranes below which labels fit nowhere, standard deviations: 0.57 at least where FIB-25 and SNEMI3D fit,
# 0.15 at most where they do not (the same boxes).
LEAST = 0.2
SHOWN = (1, 1024, 1024)


def first_look(run_dir: Path) -> list[dict[str, Any]]:
    """Return what the page shows of each volume that was ingested: a sentence, pictures, statistics, a command."""
    paths = RunPaths(run_dir)
    names = [path.stem if path.stem != "raw" else path.parent.name for path in paths.existing("ingest", "image")]
    config = paths.read_config()
    return [_look(paths, name) for name in names if config is None or name in config.volumes]


def _look(paths: RunPaths, name: str) -> dict[str, Any]:
    specs = [paths.of(*stage, volume=name) for stage in (("ingest", "image"), ("ingest", "labels"), ("membrane",))]
    image_spec, labels_spec, membrane = (spec if Path(spec).exists() else None for spec in specs)
    stores = [spec for spec in (image_spec, labels_spec, membrane and volume_in(membrane, "edges")) if spec]
    faults = read_faults(str(image_spec))
    with open_volume(str(image_spec)) as image:
        size, box, shown, verdict, found = voxel_size_of(image), image.box, {}, "There are no labels to check.", None
        if labels_spec:
            with open_truth(labels_spec) as truth:
                box = truth.box.intersect(image.box)
                verdict, section = check(image, truth, box)
                found = box.middle((box.shape[0], *SHOWN[1:])).intersect(box)
                found = Box((section, *found.start[1:]), (section + 1, *found.stop[1:]))
                shown["labels"] = truth.read(found)[0]
        found = found or box.middle(SHOWN).intersect(box)
        (plane,) = (each for each in pictures.planes(found, size) if each.axis == 0)
        base = pictures.gray(image.read(found)[0], plane.size_pixels)
        if membrane:
            with open_volume(stores[-1]) as edges:
                if edges.box.contains(found):
                    shown["membranes"] = edges.read(found)[0]
        levels = levels_of(image, image.box)
        facts = [extent_um(image.box.shape, size), doubt_about_size(size) or "", f"{len(faults)} faults of sections"]
        if levels:
            facts.append(
                f"grey levels: median {levels.median:.0f}, quartiles {levels.spread:.0f} apart, jumps {levels.jump:.2f}"
            )
    row = {title: pictures.overlay(base, labels) for title, labels in shown.items()}
    return {
        "name": name,
        "verdict": verdict,
        "pictures": {title: pictures.data_uri(picture) for title, picture in {"image": base, **row}.items()},
        "section": found.start[0],
        "facts": [*filter(None, facts)],
        "command": " ".join(["ffn view", *map(shlex.quote, stores)]),
    }


def check(image: Volume, labels: Volume, box: Box) -> tuple[str, int]:
    """Return whether labels fit an image in a box, in words, and the labelled section nearest to the middle."""
    window = box.middle(WINDOW_OF_CUBE if len(set(box.shape)) == 1 else WINDOW).intersect(box)
    ids = labels.read(window)
    places = np.flatnonzero(ids.any(axis=(1, 2)))
    section = window.start[0] + int(min(places, key=lambda z: abs(z - len(ids) // 2), default=len(ids) // 2))
    if len(places) < len(ids) or len(ids) <= 2 * max(SHIFTS):
        return f"Not checked: labels in {len(places)} of the {len(ids)} sections in the middle.", section
    orders = [order for order in itertools.permutations(range(3)) if order != (0, 1, 2)]
    fits = [order for order in orders if all(box.shape[a] == n for a, n in zip(order, box.shape, strict=True))]
    found = alignments(image.read(window), ids, fits)
    best = max(found, key=lambda change: found[change])
    if found[best] < LEAST:
        text = "no membranes lie under the borders of the labels. Is it their image, their place and voxel size?"
        return f"Warning: {text}", section
    if best and found[best] > CLEARER * found[""]:
        text = f"membranes fit the labels {best} better ({found[best]:.2f} against {found['']:.2f})."
        return f"Warning: {text}", section
    text = f"Membranes lie under the borders of the labels, and nowhere better ({found['']:.2f} standard deviations)."
    return text, section


def alignments(image: np.ndarray, labels: np.ndarray, orders: list[tuple[int, ...]]) -> dict[str, float]:
    """Return how strongly membranes lie under the borders of labels, by what is done to these; "" is nothing."""
    grey = image.astype(np.float32)
    bands = ndimage.gaussian_filter(grey, COARSE) - ndimage.gaussian_filter(grey, FINE)
    inner = slice(max(SHIFTS), -max(SHIFTS))
    bands = (bands / max(float(bands.std()), 1e-9))[inner]
    return {name: abs(_under(bands, changed)) for name, changed in _changes(labels, inner, orders)}


def _changes(labels: np.ndarray, inner: slice, orders: list[tuple[int, ...]]) -> Iterator[tuple[str, np.ndarray]]:
    for flipped in (axes for count in range(4) for axes in itertools.combinations(range(3), count)):
        named = ", ".join("zyx"[axis] for axis in flipped)
        yield f"flipped along {named}" if named else "", np.flip(labels, flipped)[inner]
    for order in orders:
        axes = ", ".join("zyx"[axis] for axis in order)
        yield f"with their axes z, y, x in the order {axes}", labels.transpose(order)[inner]
    for shift in SHIFTS:
        yield f"shifted by {shift:+d} sections", labels[inner.start - shift : len(labels) + inner.stop - shift]


def _under(bands: np.ndarray, labels: np.ndarray) -> float:
    """Return the mean of bands at the borders of labels in sections, less that elsewhere."""
    border = pictures.borders(labels)
    return float(bands[border].mean() - bands[~border].mean()) if border.any() and not border.all() else 0.0
