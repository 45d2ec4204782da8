"""Canvases of several subvolumes on one device, on which objects grow together; the host knows objects, not FOVs."""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from ffn.config import ModelConfig
from ffn.errors import ConfigError
from ffn.geometry import ZYX, Box, zyx
from ffn.inference.canvas import DECIDED_LOGIT, NO_VOXELS, Canvas, Harvest, Thresholds, is_free, quantised_from
from ffn.inference.device.burst import ANSWER, CROWDED, REQUEST, Burst, Growing, Scenes
from ffn.inference.flood import ObjectGrower
from ffn.inference.inputs import Network
from ffn.machine.gpu import jax_device
from ffn.model.jax_network import engine_name, prepared

if TYPE_CHECKING:
    import jax

log = logging.getLogger(__name__)

GREY_LEVELS = (np.dtype(np.uint8), np.dtype(np.uint16))
SMALLEST_FETCH = 64  # fetched cubes have powers of 2 from here as sides, so that few shapes are compiled; our choice
# FOVs of an object in a burst, at most; our choice. On a CPU, they take seconds, for which SIGTERM and the bar wait.
FOVS_OF_BURST = {"cpu": 8, "gpu": 128}
QUEUE = 8192  # positions for which a queue has room at first; our choice


class DeviceCanvas(Canvas):
    """A canvas whose image, POM and queue are on the device."""

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
        self._is_strong = False
        self._is_shown = False  # whether the device knows the segmentation
        self.has_queue = False  # whether the device has the queue

    def start(self, seed_zyx: ZYX) -> None:
        """Clear the POM, activate the seed voxel, and queue it."""
        if not self._is_shown:
            blocked = ~is_free(self.segmentation)
            for box in self.refused:
                blocked[box.slices()] = True
            self._lanes.block(self.lane, blocked)
        self._seed, self._visited = seed_zyx, Box.around(seed_zyx)
        self.num_deleted = 0
        self._lanes.clear(self.lane, seed_zyx, self.thresholds.init)
        self._is_strong = self.thresholds.init >= self.thresholds.move
        self._is_shown = self.has_queue = True

    def resume(self, visited: Box, pom_logit: np.ndarray) -> None:
        """Clear the POM and restore the result of `visited_pom`."""
        self._visited, self.has_queue = visited, False
        self._lanes.restore(self.lane, visited, pom_logit)
        self._is_strong = bool(pom_logit[Box.around(self._seed).slices(visited.start)] >= self.thresholds.move)

    def claim(self) -> None:
        """Block the voxels of the object on the device, too."""
        self._lanes.claim(self.lane)

    def may_visit(self, position_zyx: ZYX) -> bool:
        """Whether the FOV may move here now: the device has found it, or will find out at the next burst."""
        return True

    def is_strong(self, position_zyx: ZYX) -> bool:
        """Whether the POM at the seed reaches the move threshold now."""
        assert position_zyx == self._seed
        return self._is_strong

    def take(self, evaluated: np.ndarray, num_deleted: int, is_strong: bool) -> None:
        """Take note of FOVs, at positions of shape (N, 3), that the device has evaluated and written."""
        self.num_deleted += num_deleted
        self._is_strong = is_strong
        if len(evaluated):
            first, last = (zyx(found.tolist()) for found in (evaluated.min(axis=0), evaluated.max(axis=0)))
            self._visited = Box.hull((self.visited, self.fov(first), self.fov(last)))

    @property
    def visited(self) -> Box:
        """Bounding box of the voxels visited for this object."""
        assert self._visited is not None
        return self._visited

    def visited_pom(self) -> tuple[Box, np.ndarray]:
        """Fetch the POM in the bounding box of the voxels visited for this object (NaN where not visited)."""
        return self.visited, self._lanes.pom(self.lane)[self.visited.slices()]

    def harvest(self, least: int | None) -> Harvest:
        """Fetch the object, with its voxels if they are as many as `least`."""
        return self._lanes.harvest(self.lane, self.visited, least)

    def object_mask(self) -> tuple[Box, np.ndarray]:
        """Fetch the bounding box of the visited voxels, and where in it the POM reaches the segment threshold."""
        found = self.harvest(0)
        return found.box, found.probability > 0


class DeviceLanes:
    """Images and POMs of `size` subvolumes on a device, padded to one shape, so that one program serves all."""

    def __init__(self, network: Network, thresholds: Thresholds, size: int, shape_zyx: ZYX, dtype: np.dtype) -> None:
        device = jax_device()
        import jax
        import jax.numpy as jnp

        model, precision = network.model, network.choice.precision
        on = f" on {device.device_kind} by JAX {jax.__version__}" if device.platform == "gpu" else ""
        self.name = f"{engine_name(model.config, precision)}{on}"  # others may round otherwise
        self.size = size
        self._model = model.config
        self._thresholds = thresholds
        self._shape = shape_zyx
        self._device = device
        self._burst = Burst(model.config, thresholds, precision, shape_zyx, FOVS_OF_BURST[device.platform])
        self._normalisation = network.normalisation
        levels = np.arange(np.iinfo(dtype).max + 1, dtype=dtype) if dtype in GREY_LEVELS else None
        with self._refusal_in_one_line(), jax.default_device(device):
            seen = None if levels is None else jnp.asarray(self._normalisation.apply(levels))
            shape, stored = (size, *shape_zyx), np.float32 if seen is None else dtype
            scenes = Scenes(jnp.zeros(shape, stored), jnp.zeros(shape, bool))
            pom_logit, done = jnp.full(shape, np.nan, np.float32), jnp.zeros((size, self._burst.num_cells), bool)
            growing = Growing(pom_logit, done, jnp.zeros((size, QUEUE, 3), np.int32), jnp.zeros((size, 2), np.int32))
            params = prepared(model.weights, model.config, precision)
            # no copy; but without it, JAX would move them to its first device
            made = jax.block_until_ready(jax.device_put((params, seen, scenes, growing, quantised_from()), device))
        self._params, self._seen, self._scenes, self._growing, self._quantised_from = made
        self._run = jax.jit(self._burst.run, donate_argnums=3)
        threading.Thread(target=self._compile, args=(self._run, made)).start()  # while images are read and seeds found
        log.info("engine: %s on %s, %d canvases of %s voxels", self.name, device, size, shape_zyx)

    def _compile(self, run: Any, arguments: tuple[Any, ...]) -> None:
        """Compile the burst of all canvases, for which `advance` waits; it raises what goes wrong."""
        import jax

        with jax.default_device(self._device), contextlib.suppress(jax.errors.JaxRuntimeError):
            run.lower(*arguments[:4], np.zeros((self.size, REQUEST), np.int32)).compile()

    def canvas(self, lane: int, raw: np.ndarray, segmentation: np.ndarray, inside: Box | None = None) -> DeviceCanvas:
        """Put an image, as stored, and of `shape_zyx` at most, on the device, and return its canvas."""
        stored = raw if self._seen is not None else self._normalisation.apply(raw)
        padded = np.pad(stored, [(0, whole - n) for whole, n in zip(self._shape, raw.shape, strict=True)])
        with self._refusal_in_one_line():
            self._scenes = self._scenes._replace(images=_replaced()(self._scenes.images, padded, lane))
        return DeviceCanvas(self, lane, self._model, self._thresholds, segmentation, inside)

    def advance(self, growers: Iterable[ObjectGrower]) -> int:
        """Evaluate FOVs of each object, each on another canvas of these; return their number.

        As many objects are computed as there are, rounded up to a power of two.
        """
        import jax

        growing = [grower for grower in growers if grower.next_position() is not None]
        if not growing:
            return 0
        requests = self._requests(growing)
        with self._refusal_in_one_line(), jax.default_device(self._device):  # how to convolve depends on it
            self._growing, answers = self._run(self._params, self._seen, self._scenes, self._growing, requests)
            rows = np.asarray(answers)[: len(growing)]
        for grower, row in zip(growing, rows, strict=True):
            self._take(grower, row)
        if rows[:, CROWDED].any():
            self._enlarge(2 * self._growing.queue.shape[1])
        return int(rows[:, 0].sum())

    def _requests(self, growers: list[ObjectGrower]) -> np.ndarray:
        """Return the requests of objects, and of canvases to be left alone."""
        lanes = [_canvas(grower).lane for grower in growers]
        number = min(self.size, 1 << (len(lanes) - 1).bit_length())
        others = [lane for lane in range(self.size) if lane not in lanes]
        requests = np.zeros((number, REQUEST), np.int32)
        requests[:, 0] = lanes + others[: number - len(lanes)]
        for row, grower in zip(requests, growers, strict=False):
            canvas = _canvas(grower)
            if not canvas.has_queue:
                self._fill_queue(canvas.lane, grower)
                canvas.has_queue = True
            left, most = grower.num_left, self._burst.num_fovs
            row[1] = most if left is None else min(left, most)
            inside, reach = canvas.inside, canvas.reach
            row[2:] = *grower.seed_zyx, *inside.start, *inside.stop, *reach.start, *reach.stop
        return requests

    def _take(self, grower: ObjectGrower, row: np.ndarray) -> None:
        """Tell an object what a burst has made of it."""
        num_fovs, num_deleted, is_found, is_strong, _, *first = row[:ANSWER].tolist()
        evaluated, canvas = row[ANSWER:].reshape(-1, 3)[:num_fovs], _canvas(grower)
        canvas.take(evaluated, num_deleted, bool(is_strong))
        queue = functools.partial(self._queue, canvas.lane)
        grower.leap(map(zyx, evaluated.tolist()), zyx(first) if is_found else None, queue)

    def _queue(self, lane: int) -> list[ZYX]:
        """Fetch the queue of an object."""
        first, end = np.asarray(self._growing.ends[lane]).tolist()
        ring = np.asarray(self._growing.queue[lane])
        return list(map(zyx, ring[np.arange(first, end) % len(ring)].tolist()))

    def _fill_queue(self, lane: int, grower: ObjectGrower) -> None:
        """Bring the queue of an object to the device, and which cells it has evaluated."""
        queue, evaluated = grower.queue, grower.evaluated
        self._enlarge(1 << (len(queue) + self._burst.num_sides).bit_length())
        ring = np.zeros(self._growing.queue.shape[1:], np.int32)
        ring[: len(queue)] = queue
        done = np.zeros(self._growing.done.shape[1], bool)
        done[self._burst.cell(evaluated, np.array(grower.seed_zyx))] = True
        rows = (done, ring, np.array([0, len(queue)], np.int32))
        placed = (_replaced()(whole, row, lane) for whole, row in zip(self._growing[1:], rows, strict=True))
        self._growing = Growing(self._growing.pom_logit, *placed)

    def _enlarge(self, room: int) -> None:
        """Make room for as many positions in each queue, at least."""
        import jax

        queue, ends = np.asarray(self._growing.queue), np.asarray(self._growing.ends)
        if room > (before := queue.shape[1]):
            places = (ends[:, :1] + np.arange(before)) % before
            larger = np.pad(np.take_along_axis(queue, places[..., None], 1), ((0, 0), (0, room - before), (0, 0)))
            queue, ends = jax.device_put((larger, ends - ends[:, :1]), self._device)
            self._growing = self._growing._replace(queue=queue, ends=ends)

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

    def block(self, lane: int, blocked: np.ndarray) -> None:
        """Tell where objects may not be centred on a canvas."""
        padded = np.pad(blocked, [(0, whole - n) for whole, n in zip(self._shape, blocked.shape, strict=True)])
        self._scenes = self._scenes._replace(blocked=_replaced()(self._scenes.blocked, padded, lane))

    def claim(self, lane: int) -> None:
        """Block the voxels of the object on a canvas."""
        blocked = _claimed()(self._scenes.blocked, self._growing.pom_logit, lane, np.float32(self._thresholds.segment))
        self._scenes = self._scenes._replace(blocked=blocked)

    def clear(self, lane: int, seed_zyx: ZYX, logit: float) -> None:
        """Set the POM of a canvas to not visited, but for the seed, which is all that its queue holds."""
        self._growing = _cleared()(self._growing, lane, np.array(seed_zyx, np.int32), np.float32(logit))

    def restore(self, lane: int, box: Box, pom_logit: np.ndarray) -> None:
        """Set the POM of a canvas to not visited, but for a box."""
        whole = np.full(self._shape, np.nan, np.float32)
        whole[box.slices()] = pom_logit
        self._growing = self._growing._replace(pom_logit=_replaced()(self._growing.pom_logit, whole, lane))

    def pom(self, lane: int) -> np.ndarray:
        """Fetch the POM of a canvas."""
        return np.asarray(self._growing.pom_logit[lane])

    def harvest(self, lane: int, visited: Box, least: int | None) -> Harvest:
        """Quantise the POM of an object on the device; fetch it if the object has as many voxels as `least`."""
        side = max(SMALLEST_FETCH, 1 << (max(visited.shape) - 1).bit_length())
        size = zyx(min(whole, side) for whole in self._shape)
        start = zyx(min(first, whole - n) for first, whole, n in zip(visited.start, self._shape, size, strict=True))
        limits = np.array([-DECIDED_LOGIT, DECIDED_LOGIT, self._thresholds.segment], np.float32)
        corner = np.array((lane, *start))
        levels, found = _quantised()(self._growing.pom_logit, corner, limits, self._quantised_from, size)
        if least is not None:
            levels.copy_to_host_async()
        (visible, in_object, num_voxels), *occupied = np.split(np.asarray(found), np.cumsum((3, *size[:2])))
        counted = int(visible - in_object), int(in_object)
        if least is None or num_voxels < max(1, least):
            return Harvest(*NO_VOXELS, *counted)
        hits = [np.flatnonzero(planes) + first for planes, first in zip(occupied, start, strict=True)]
        box = Box(zyx(int(hit[0]) for hit in hits), zyx(int(hit[-1]) + 1 for hit in hits))
        return Harvest(box, np.asarray(levels)[box.slices(start)], *counted)


def _canvas(grower: ObjectGrower) -> DeviceCanvas:
    assert isinstance(grower.canvas, DeviceCanvas)
    return grower.canvas


@functools.cache
def _replaced() -> Callable[..., jax.Array]:
    """Compile: replace the array of one canvas."""
    import jax

    return jax.jit(functools.partial(jax.lax.dynamic_update_index_in_dim, axis=0), donate_argnums=0)


@functools.cache
def _claimed() -> Callable[..., jax.Array]:
    """Compile: block where the POM of one canvas reaches a threshold."""
    import jax

    def claimed(blocked: jax.Array, pom_logit: jax.Array, lane: int, logit: float) -> jax.Array:
        return jax.lax.dynamic_update_index_in_dim(blocked, blocked[lane] | (pom_logit[lane] >= logit), lane, 0)

    return jax.jit(claimed, donate_argnums=0)


@functools.cache
def _cleared() -> Callable[..., Growing]:
    """Compile: clear the POM of one canvas, set one voxel, and queue it."""
    import jax
    import jax.numpy as jnp

    def cleared(growing: Growing, lane: int, seed: jax.Array, logit: float) -> Growing:
        pom_logit, done = (
            jax.lax.dynamic_update_index_in_dim(whole, jnp.full_like(whole[0], value), lane, 0)
            for whole, value in zip(growing[:2], (jnp.nan, False), strict=True)
        )
        queue, ends = growing.queue.at[lane, 0].set(seed), growing.ends.at[lane].set(jnp.array([0, 1]))
        return Growing(pom_logit.at[(lane, *seed)].set(logit), done, queue, ends)

    return jax.jit(cleared, donate_argnums=0)


@functools.cache
def _quantised() -> Callable[..., tuple[jax.Array, jax.Array]]:
    """Compile: quantise a box of the POM of one canvas, count voxels, and find the planes that the object is in."""
    import jax
    import jax.numpy as jnp

    def quantised(
        pom_logit: jax.Array, corner: jax.Array, limits: jax.Array, quantised_from: jax.Array, size: ZYX
    ) -> tuple[jax.Array, jax.Array]:
        part = jax.lax.dynamic_slice(pom_logit, corner, (1, *size))[0]
        levels = 1 + jnp.searchsorted(quantised_from, part, side="right", method="scan_unrolled")
        is_object, counts = part >= limits[2], jnp.stack([jnp.count_nonzero(part >= limit) for limit in limits])
        occupied = [is_object.any(axis=axes).astype(jnp.int32) for axes in ((1, 2), (0, 2), (0, 1))]
        return jnp.where(is_object, levels, 0).astype(jnp.uint8), jnp.concatenate([counts, *occupied])

    return jax.jit(quantised, static_argnums=4)
