"""FIB-25 with the published weights: how far a flood comes in a given time, and where the time goes."""

from __future__ import annotations

import functools
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np

from ffn.config import SegmentConfig, SubvolumesConfig
from ffn.contingency import count_pairs
from ffn.evaluation.scores import score
from ffn.geometry import Box, zyx
from ffn.inference.device.lanes import DeviceLanes
from ffn.inference.flood import FloodFill
from ffn.inference.inputs import SegmentInputs
from ffn.inference.segment import segment, segment_subvolumes
from ffn.inference.subvolume import SubvolumeFlood
from ffn.io.open import open_volume

from .common import OUT, PACK, TINY, Report, packed_image, packed_labels

OVERLAP = 18 if TINY else 48  # of eight tiles, voxels
WHILE_OTHERS_END = 15  # seconds before the limit at which a flood is given up, so that its row is written
TIMED = [
    (DeviceLanes, ("_requests", "_take", "clear", "claim", "harvest", "canvas")),
    (SubvolumeFlood, ("read", "write")),
    (FloodFill, ("growing", "_claim")),
]
OF_FOV = ("_requests", "_run", "_take", "clear", "claim", "harvest", "waiting")


class GivenUpError(BaseException):
    """The time of a flood is over; not an Exception, so that nothing handles it on the way."""


def one_canvas(report: Report) -> None:
    """Flood the whole cube as one box, and score it."""
    flood(report, 1, "float16")


def eight_canvases(report: Report) -> None:
    """Flood the cube as eight overlapping boxes at once."""
    flood(report, 8, "float16")


def in_large_steps(report: Report) -> None:
    """Flood the whole cube as one box, with the steps of `effort: fast`."""
    flood(report, 1, "float16", effort="fast")


def in_float32(report: Report) -> None:
    """Flood the whole cube as one box, in float32."""
    flood(report, 1, "float32")


def flood(report: Report, canvases: int, precision: str, **options: Any) -> None:
    """Flood until the end or the time limit, and report FOVs/s and where the time went."""
    with open_volume(packed_image()) as volume:
        half = zyx((side + OVERLAP + 1) // 2 for side in volume.box.shape)
    config = SegmentConfig(engine="jax", precision=precision, canvases=canvases, checkpoint_seconds=3600, **options)
    inputs = SegmentInputs(packed_image(), str(PACK / "model"))
    clock = Clock(report)
    with tempfile.TemporaryDirectory() as folder:
        out, finished, start = f"{folder}/whole.zarr", True, time.perf_counter()
        try:
            if canvases == 1:
                segment(inputs, out, config)
            else:
                tiles = SubvolumesConfig(size_zyx=half, overlap_zyx=(OVERLAP, OVERLAP, OVERLAP))
                segment_subvolumes(inputs, f"{folder}/parts/", config, tiles)
        except GivenUpError:
            finished = False
        row = {"canvases": canvases, "precision": precision, **options, "finished": finished}
        report.add(**row, seconds=round(time.perf_counter() - start, 2), **clock.row())
        if finished and canvases == 1:
            scores(report, out)


class Clock:
    """Times the methods of a flood: those of the main thread, which feeds the device, and those of readers."""

    def __init__(self, report: Report) -> None:
        self.spent: defaultdict[str, float] = defaultdict(float)
        self.calls: Counter[str] = Counter()
        self.fovs = self.bursts = 0
        self.begin = 0.0  # when the first burst, which compiles, has ended
        self.compile_seconds = 0.0
        self._deadline = report.deadline - WHILE_OTHERS_END
        self._main = threading.get_ident()
        for kind, names in TIMED:
            for name in names:
                setattr(kind, name, self._timed(name, getattr(kind, name)))
        DeviceLanes.advance = self._advancing(DeviceLanes.advance)  # type: ignore[method-assign]
        DeviceLanes.__init__ = self._opening(DeviceLanes.__init__)  # type: ignore[method-assign]

    def row(self) -> dict[str, Any]:
        """Return the figures since the first burst has ended."""
        seconds = time.perf_counter() - self.begin
        waiting = self.spent["advance"] - sum(self.spent[name] for name in ("_requests", "_run", "_take"))
        parts = {**self.spent, "waiting": waiting}
        of_fov = {name: round(parts.get(name, 0) / max(1, self.fovs) * 1e6, 1) for name in OF_FOV}
        return {
            "compile_s": round(self.compile_seconds, 1),
            "flood_s": round(seconds, 2),
            "fovs": self.fovs,
            "bursts": self.bursts,
            "fovs_per_s": round(self.fovs / seconds, 1),
            "us_of_fov": of_fov,
            "seconds_of": {name: round(amount, 2) for name, amount in parts.items()},
            "calls": dict(self.calls),
        }

    def _timed(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def timed(*arguments: Any, **options: Any) -> Any:
            start = time.perf_counter()
            try:
                return method(*arguments, **options)
            finally:
                key = name if threading.get_ident() == self._main else f"{name} of readers"
                self.spent[key] += time.perf_counter() - start
                self.calls[key] += 1

        return timed

    def _opening(self, method: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(method)
        def opened(lanes: DeviceLanes, *arguments: Any, **options: Any) -> None:
            method(lanes, *arguments, **options)
            lanes._run = self._timed("_run", lanes._run)  # type: ignore[assignment]

        return opened

    def _advancing(self, method: Callable[..., int]) -> Callable[..., int]:
        timed = self._timed("advance", method)

        @functools.wraps(method)
        def advanced(lanes: DeviceLanes, growers: Any) -> int:
            fovs = timed(lanes, growers)
            if not self.begin:
                self.begin, self.compile_seconds = time.perf_counter(), self.spent["advance"]
                self.spent.clear()
                self.calls.clear()
            else:
                self.fovs += fovs
                self.bursts += 1
            if time.time() > self._deadline:
                raise GivenUpError
            return fovs

        return advanced


def scores(report: Report, segmentation: str) -> None:
    """Compare with the labels, unfilled, and keep the segmentation for a comparison with a CPU's."""
    with open_volume(segmentation) as ours, open_volume(packed_labels()) as truth:
        box: Box = ours.box.intersect(truth.box)
        table = count_pairs(truth.read(box), ours.read(box))
        np.savez_compressed(OUT / "seg.npz", segmentation=ours.read(ours.box).astype(np.uint16))
    report.add(
        **{f"{kind}_{name}": value for kind in ("foreground", "all") for name, value in score(table, kind).items()}
    )
