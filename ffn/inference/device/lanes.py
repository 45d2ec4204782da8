"""Canvases of several subvolumes on one device, which advance together; the host knows the logits it needs to move."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from ffn.config import ModelConfig
from ffn.errors import ConfigError
from ffn.geometry import ZYX, Box, add, zyx
from ffn.inference.canvas import Canvas, Thresholds
from ffn.inference.device.step import INSIDE_COLUMN, SEED_COLUMN, WATCHED, CanvasState, Stepper
from ffn.inference.grower import ObjectGrower
from ffn.inference.inputs import Network
from ffn.inference.movement import ScoredOffset, offsets_of_maxima, sides
from ffn.machine.jax_device import jax_device

if TYPE_CHECKING:
    import jax

log = logging.getLogger(__name__)

GREY_LEVELS = (np.dtype(np.uint8), np.dtype(np.uint16))
SMALLEST_FETCH = 32  # sides of a fetched box are powers of 2 from here, so that few shapes are compiled; our choice


class DeviceCanvas(Canvas):
    """A canvas whose image and POM are on the device. Its `put` takes the answer of the device."""

    def __init__(
        self,
        lanes: DeviceLanes,
        lane: int,
        model: ModelConfig,
        thresholds: Thresholds,
        segmentation: np.ndarray,
        inside: Box | None = None,
    ) -> None:
        self._prepare(model, thresholds, segmentation, inside)
        self.lane = lane
        self._lanes = lanes
        self.asked: list[ZYX] = []  # positions whose logits come with the next answer
        self._logits: dict[ZYX, float] = {}  # known since the last FOV

    def start(self, seed_zyx: ZYX) -> None:
        """Clear the POM and activate the seed voxel."""
        self._visited = Box.around(seed_zyx)
        self.num_deleted = 0
        self._lanes.clear(self.lane, seed_zyx, self.thresholds.init)
        self._logits = {seed_zyx: self.thresholds.init}

    def resume(self, visited: Box, pom_logit: np.ndarray) -> None:
        """Clear the POM and restore the result of `visited_pom`."""
        self._visited = visited
        self._lanes.restore(self.lane, visited, pom_logit)
        self._logits = {}

    def logit(self, position_zyx: ZYX) -> float:
        """Return the POM at a voxel; it is fetched only if the last FOV did not bring it along."""
        if position_zyx not in self._logits:
            self._logits[position_zyx] = self._lanes.logit(self.lane, position_zyx)
        return self._logits[position_zyx]

    def put(self, position_zyx: ZYX, answer: np.ndarray) -> list[ScoredOffset]:
        """Take the answer (int32) of `Stepper.step`, whose FOV is on the device already; return the moves."""
        num_sides = len(sides(self.deltas_zyx))
        logits = answer.view(np.float32)
        *flats, num_deleted = answer[num_sides : 2 * num_sides + 1].tolist()
        moves = offsets_of_maxima(logits[:num_sides].tolist(), flats, self.deltas_zyx, self.thresholds.move)
        self._logits = {add(position_zyx, offset): score for score, offset in moves}
        watched = logits[2 * num_sides + 1 :].tolist()
        self._logits.update(zip(self.asked, watched, strict=True))
        self._visited = Box.hull((self.visited, self.fov(position_zyx)))
        self.num_deleted += num_deleted
        return moves

    @property
    def visited(self) -> Box:
        """Bounding box of the voxels visited for this object."""
        assert self._visited is not None
        return self._visited

    def visited_pom(self) -> tuple[Box, np.ndarray]:
        """Fetch the POM in the bounding box of the voxels visited for this object (NaN where not visited)."""
        return self.visited, self._lanes.fetch(self.lane, self.visited)


class DeviceLanes:
    """Images and POMs of `size` subvolumes on a device, padded to one shape, so that one compiled step serves all."""

    def __init__(self, network: Network, thresholds: Thresholds, size: int, shape_zyx: ZYX, dtype: np.dtype) -> None:
        device = jax_device()
        import jax

        model, precision = network.model, network.choice.precision
        on = f" on {device.device_kind} by JAX {jax.__version__}" if device.platform == "gpu" else ""
        self.name = f"jax {precision}{on}"  # others may round otherwise
        self.size = size
        self._model = model.config
        self._thresholds = thresholds
        self._shape = shape_zyx
        self._device = device
        self._stepper = Stepper(model.config, thresholds, precision)
        self._params = jax.device_put(model.weights, device)
        self._normalisation = network.normalisation
        levels = np.arange(np.iinfo(dtype).max + 1, dtype=dtype) if dtype in GREY_LEVELS else None
        seen = None if levels is None else jax.device_put(self._normalisation.apply(levels), device)
        self._seen = seen  # normalised value of each grey level
        with self._refusal_in_one_line(), jax.default_device(device):
            images = jax.numpy.zeros((size, *shape_zyx), np.float32 if seen is None else dtype)
            state = CanvasState(images, jax.numpy.full((size, *shape_zyx), np.nan, np.float32))
            # no copy; but without it, JAX would move them to its first device
            self._state = jax.block_until_ready(jax.device_put(state, device))
        self._step = jax.jit(self._stepper.step, donate_argnums=2)
        log.info("engine: %s on %s, %d canvases of %s voxels", self.name, device, size, shape_zyx)

    def canvas(self, lane: int, raw: np.ndarray, segmentation: np.ndarray, inside: Box | None = None) -> DeviceCanvas:
        """Put an image, as stored, and of `shape_zyx` at most, on the device, and return its canvas."""
        stored = raw if self._seen is not None else self._normalisation.apply(raw)
        padded = np.pad(stored, [(0, whole - n) for whole, n in zip(self._shape, raw.shape, strict=True)])
        with self._refusal_in_one_line():
            self._state = CanvasState(_replaced()(self._state.images, padded, lane), self._state.pom_logit)
        return DeviceCanvas(self, lane, self._model, self._thresholds, segmentation, inside)

    def advance(self, growers: Iterable[ObjectGrower]) -> int:
        """Evaluate one FOV of each object, each on another canvas of these; return the number of FOVs."""
        requests = np.zeros((self.size, SEED_COLUMN + 3 * (1 + WATCHED)), np.int32)
        growing = [(grower, lane) for grower in growers if (lane := self._request(grower, requests)) is not None]
        if growing:
            with self._refusal_in_one_line():
                self._state, answers = self._step(self._params, self._seen, self._state, requests)
                rows = np.asarray(answers)
            for grower, lane in growing:
                grower.put(rows[lane])
        return len(growing)

    @contextlib.contextmanager
    def _refusal_in_one_line(self) -> Iterator[None]:
        """Name the canvases: another process may have taken the memory since it was counted."""
        import jax

        try:
            yield
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            raise ConfigError(
                f"canvases: {self.size} of {'×'.join(map(str, self._shape))} voxels found too little memory on "
                f"{self._device}, which other processes may use, too. Choose fewer, or smaller subvolumes or windows"
            ) from None

    def _request(self, grower: ObjectGrower, requests: np.ndarray) -> int | None:
        """Fill the row of a canvas and return its number; None if its object has grown."""
        canvas, position = grower.canvas, grower.next_position()
        assert isinstance(canvas, DeviceCanvas)
        if position is None:
            return None
        canvas.asked = [grower.seed_zyx, *grower.upcoming(WATCHED)]
        canvas.asked += [grower.seed_zyx] * (1 + WATCHED - len(canvas.asked))
        row = requests[canvas.lane]
        row[0], row[1:INSIDE_COLUMN] = 1, canvas.fov(position).start
        row[INSIDE_COLUMN:SEED_COLUMN] = *canvas.inside.start, *canvas.inside.stop
        row[SEED_COLUMN:] = np.ravel(canvas.asked)
        return canvas.lane

    def clear(self, lane: int, seed_zyx: ZYX, logit: float) -> None:
        """Set the POM of a canvas to not visited, but for the seed."""
        pom_logit = _cleared()(self._state.pom_logit, lane, np.array(seed_zyx), np.float32(logit))
        self._state = CanvasState(self._state.images, pom_logit)

    def restore(self, lane: int, box: Box, pom_logit: np.ndarray) -> None:
        """Set the POM of a canvas to not visited, but for a box."""
        whole = np.full(self._shape, np.nan, np.float32)
        whole[box.slices()] = pom_logit
        self._state = CanvasState(self._state.images, _replaced()(self._state.pom_logit, whole, lane))

    def fetch(self, lane: int, box: Box) -> np.ndarray:
        """Copy a box of a canvas's POM to the host."""
        size = zyx(min(whole, _power_of_two(n)) for whole, n in zip(self._shape, box.shape, strict=True))
        start = zyx(min(first, whole - n) for first, whole, n in zip(box.start, self._shape, size, strict=True))
        part = _cut()(self._state.pom_logit, np.array((lane, *start)), size)
        return np.asarray(part)[box.slices(start)]

    def logit(self, lane: int, position_zyx: ZYX) -> float:
        """Fetch the POM at one voxel."""
        return float(_cut()(self._state.pom_logit, np.array((lane, *position_zyx)), (1, 1, 1))[0, 0, 0])


def _power_of_two(n: int) -> int:
    return max(SMALLEST_FETCH, 1 << (n - 1).bit_length())


@functools.cache
def _replaced() -> Callable[..., jax.Array]:
    """Compile: replace the array of one canvas."""
    import jax

    def replaced(arrays: jax.Array, array: jax.Array, lane: int) -> jax.Array:
        return jax.lax.dynamic_update_slice(arrays, array[None], (lane, 0, 0, 0))

    return jax.jit(replaced, donate_argnums=0)


@functools.cache
def _cleared() -> Callable[..., jax.Array]:
    """Compile: clear the POM of one canvas, and set one voxel."""
    import jax
    import jax.numpy as jnp

    def cleared(pom_logit: jax.Array, lane: int, seed: jax.Array, logit: float) -> jax.Array:
        empty = jnp.full((1, *pom_logit.shape[1:]), jnp.nan, jnp.float32)
        pom_logit = jax.lax.dynamic_update_slice(pom_logit, empty, (lane, 0, 0, 0))
        return pom_logit.at[(lane, *seed)].set(logit)

    return jax.jit(cleared, donate_argnums=0)


@functools.cache
def _cut() -> Callable[..., jax.Array]:
    """Compile: cut a box out of the POM of one canvas."""
    import jax

    def cut(pom_logit: jax.Array, corner: jax.Array, size: ZYX) -> jax.Array:
        return jax.lax.dynamic_slice(pom_logit, corner, (1, *size))[0]

    return jax.jit(cut, static_argnums=2)
