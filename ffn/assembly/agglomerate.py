"""Score the contacts of a base segmentation by whether the network grows one segment into the other."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ffn import atomic
from ffn.assembly.contacts import Contact, find_contacts, merge_contacts
from ffn.assembly.merge_graph import MergeEdge, header
from ffn.assembly.resegment import Resegmenter
from ffn.config import AgglomerateConfig, require_window
from ffn.errors import VolumeError
from ffn.geometry import Box
from ffn.inference.engine import create_engine
from ffn.inference.grower import FovBatch
from ffn.model.store import load_model, weights_checksum
from ffn.progress import track
from ffn.provenance import provenance
from ffn.volume import Volume, open_volume, read_table, require_image, require_labels

log = logging.getLogger(__name__)

OVERLAPS = "overlaps"


def agglomerate(
    segmentation_spec: str,
    image_spec: str,
    model_folder: str,
    out_path: str,
    config: AgglomerateConfig,
    box: Box | None = None,
) -> None:
    """Write the merge graph of a base segmentation, which itself stays as it is.

    Candidates are pairs of segments that flood filling had claimed voxels of both for (the table ``overlaps`` beside
    the segmentation) and that touch. The network then grows both sides of each in a window around the brightest place
    between them. Edges go to ``<out>.partial`` one by one, from where a killed job goes on.

    Parameters
    ----------
    segmentation_spec : str
        Base segmentation ``FILE.h5:DATASET``, with the table ``overlaps`` in the same file.
    image_spec : str
        Raw image that covers it.
    model_folder : str
        Trained model.
    out_path : str
        CSV file to write, see `MergeEdge`.
    config : AgglomerateConfig
        Candidates, windows, thresholds, engine.
    box : Box, optional
        Only decision points in it; default all. Boxes that tile the volume can be done by different jobs.

    Raises
    ------
    VolumeError
        If there is no table of overlaps, or the volumes do not fit together.
    ModelError
        If the model is missing or damaged.
    ConfigError
        If the window is too small for the model's FOV to move.

    Notes
    -----
    After the agglomeration of Januszewski et al. 2018, Methods.
    """
    model = load_model(model_folder)
    require_window(config.window_radius_zyx, model.config, "window_radius_zyx")
    with open_volume(segmentation_spec) as segmentation, open_volume(image_spec) as image:
        box = _checked(segmentation, image, box)
        overlaps = _overlaps(segmentation_spec, config.min_overlap_voxels)
        contacts = _contacts(segmentation, image, box, overlaps, config)
        log.info("%d pairs overlap, %d of them touch in %s", len(overlaps), len(contacts), box)
        engine = create_engine(model, config.engine, config.precision, config.threads, config.batch_size)
        inputs = {"segmentation": segmentation_spec, "image": image_spec, "weights": weights_checksum(model.weights)}
        voxels = _checksum(segmentation, image, box, config)
        record = provenance("agglomerate", config, **inputs, voxels=voxels, engine=engine.name, box=box)
        judge = Resegmenter(
            image, segmentation, model, FovBatch(engine, model.config.fov_size_zyx, config.batch_size), config
        )
        partial = Path(f"{out_path}.partial")
        lines = _resumed(partial, header(record), contacts)
        with open(partial, "a") as file:
            for contact in track(contacts[len(lines) :], len(contacts) - len(lines), "agglomerate", "contact"):
                evidence = judge.examine(contact)
                edge = MergeEdge.of(contact, overlaps[contact.pair], evidence, evidence.score(config))
                lines.append(edge.row())
                file.write(lines[-1] + "\n")
                file.flush()
    atomic.write_text(out_path, header(record) + "".join(line + "\n" for line in lines))
    partial.unlink()


def _checked(segmentation: Volume, image: Volume, box: Box | None) -> Box:
    require_labels(segmentation)
    require_image(image)
    if not image.box.contains(segmentation.box):
        raise VolumeError(
            f"{image.name}: covers {image.box}, expected all of the segmentation {segmentation.box}. "
            "Is it the image that was segmented?"
        )
    part = segmentation.box if box is None else box.intersect(segmentation.box)
    if part.is_empty:
        raise VolumeError(f"{segmentation.name}: box {box} is outside of the volume {segmentation.box}")
    return part


def _checksum(segmentation: Volume, image: Volume, box: Box, config: AgglomerateConfig) -> str:
    """Return what tells this part of the volumes from any other, so that no stale work is continued."""
    total = hashlib.sha256()
    for block in box.blocks(config.block_size_zyx):
        for volume in (segmentation, image):
            total.update(np.ascontiguousarray(volume.read(block)).data)
    return total.hexdigest()


def _overlaps(spec: str, min_voxels: int) -> dict[tuple[int, int], int]:
    """Voxels that pairs of segments, smaller id first, had both claimed; ascending by pair."""
    table = read_table(spec, OVERLAPS)
    if table is None or table.shape[1:] != (3,):
        raise VolumeError(
            f"{spec}: has no table '{OVERLAPS}' (id, id, voxels) beside it. Expected a file of ffn segment or reconcile"
        )
    kept = table[table[:, 2] >= min_voxels].tolist()
    return {(min(a, b), max(a, b)): voxels for a, b, voxels in sorted(kept, key=lambda row: sorted(row[:2]))}


def _contacts(
    segmentation: Volume, image: Volume, box: Box, overlaps: dict[tuple[int, int], int], config: AgglomerateConfig
) -> list[Contact]:
    if not overlaps:
        return []
    pairs = np.array(list(overlaps), np.uint64)
    blocks = list(box.blocks(config.block_size_zyx))

    def found() -> Iterator[Contact]:
        for block in track(blocks, len(blocks), "contacts"):
            yield from find_contacts(segmentation, image, block, pairs, config.max_gap)

    return merge_contacts(found())


def _resumed(partial: Path, head: str, contacts: list[Contact]) -> list[str]:
    """Return the finished lines of a killed job with the same configuration and inputs, and keep only these in it."""
    partial.parent.mkdir(parents=True, exist_ok=True)
    text = partial.read_text() if partial.exists() else ""
    lines: list[str] = []
    if text.startswith(head):
        whole = text[len(head) :].rpartition("\n")[0]
        lines = whole.split("\n") if whole else []
        expected = [f"{a},{b}," for a, b in (contact.pair for contact in contacts)]
        if len(lines) > len(contacts) or not all(map(str.startswith, lines, expected)):
            lines = []
    if lines:
        log.info("%s: going on after %d contacts", partial, len(lines))
    atomic.write_text(partial, head + "".join(line + "\n" for line in lines))
    return lines
