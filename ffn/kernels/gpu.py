"""Convolutions of 32 channels on the tensor cores of NVIDIA GPUs, by the kernels of gpu.cu, as operations of JAX.

The network of 32 features, which they compute, and its gradient come last.

The maps of a batch of FOVs are one list of rows of 32 channels: a row for each voxel, and rows of zeros, which pad: one
behind each line, a line behind each plane, a plane behind each FOV. So the neighbours of a voxel are a fixed number of
rows away, and those outside of its FOV are padding.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ffn.config import ModelConfig
from ffn.geometry import ZYX, zyx
from ffn.machine.gpu import jax_capabilities

CHANNELS = 32
OLDEST = (8, 0)  # compute capability: Ampere
TARGET = "__gpu$xla.gpu.ptx"  # XLA's own name for a kernel that comes as PTX
MULTIPROCESSORS = 132  # of an H100; where there are fewer, some have two blocks
GRADIENT_WARPS, GRADIENT_ROWS = 9, 128
ROW_BYTES = 2 * CHANNELS
SHARED_BYTES = 99 * 1024  # of a block, on every GPU from OLDEST on
TRIAL_FOV = (4, 5, 6)

Params = Mapping[str, jax.Array]


class Tiling(NamedTuple):
    """How many tiles of 16 rows a warp has, warps a block, and blocks a multiprocessor, at least."""

    tiles: int
    warps: int
    min_blocks: int

    @property
    def rows(self) -> int:
        """Rows of a block."""
        return 16 * self.tiles * self.warps


# Measured on an H200 with FOVs of 33³: the fastest of 21 for one, and within 1 % of the fastest of 6 for eight.
ONE_BLOCK, SOME_BLOCKS = Tiling(3, 7, 1), Tiling(4, 4, 3)

log = logging.getLogger(__name__)


@functools.cache
def obstacle(fov_size_zyx: ZYX, features: int) -> str | None:
    """Return why this machine cannot compute a network by these kernels, or None; try them, and log the reason."""
    reason = _obstacle(fov_size_zyx, features)
    log.info("convolutions: %s", f"XLA's, because {reason}" if reason else "our kernels for 32 features")
    return reason


def _obstacle(fov_size_zyx: ZYX, features: int) -> str | None:
    if features != CHANNELS:
        return f"the network has {features} features, and the kernels compute {CHANNELS}"
    if max(_shared_bytes(name, fov_size_zyx) for name in ("conv_relu", "weight_gradient")) > SHARED_BYTES:
        return f"a FOV of {fov_size_zyx} is too wide for the kernels"
    if min(jax_capabilities(), default=(0, 0)) < OLDEST:
        return "a GPU, or the only device, has no compute capability of 8.0"
    return _trial()


@functools.cache
def _trial() -> str | None:
    """Convolve a map of ones, whose sums count neighbours, and return what went wrong."""
    try:
        with jax.ensure_compile_time_eval():
            ones = flattened(jnp.ones((1, *TRIAL_FOV, CHANNELS), jnp.bfloat16))
            kernel = packed_kernel(jnp.ones((3, 3, 3, CHANNELS, CHANNELS), jnp.bfloat16) / CHANNELS)
            found = unflattened(conv_relu(ones, kernel, jnp.zeros(CHANNELS), TRIAL_FOV), TRIAL_FOV)
            z, y, x = (np.convolve(np.ones(size), np.ones(3), "same") for size in TRIAL_FOV)
            expected = z[:, None, None, None] * y[:, None, None] * x[:, None]
            if (np.asarray(found[0], np.float32) != expected).any():
                return "they compute something else here"
    except (OSError, RuntimeError) as error:  # no NVRTC; jax.errors.JaxRuntimeError
        return " ".join(str(error).split())[:300]
    return None


def packed_kernel(kernel: jax.Array) -> jax.Array:
    """Order a kernel (3, 3, 3, 32, 32) as the threads of a warp need it: (27, 4, 32, 8), see mma.m16n8k16 of PTX.

    The columns of the product are permuted, so that a thread has 8 channels of a row, which are 16 bytes.
    """
    bits = kernel.reshape(27, 2, 2, 4, 2, 4, 2, 2, 2)  # in: half, quarter, thread, low; out: thread, half, quarter, low
    return bits.transpose(0, 1, 6, 5, 8, 3, 7, 2, 4).reshape(27, 4, 32, 8)


def backward(kernel: jax.Array) -> jax.Array:
    """Return the kernel (3, 3, 3, 32, 32) by which the gradient of a convolution's input is one of its output's."""
    return kernel[::-1, ::-1, ::-1].swapaxes(3, 4)


def flattened(maps: jax.Array) -> jax.Array:
    """Return the rows of (B, Z, Y, X, C)."""
    return jnp.pad(maps, ((0, 0), (0, 1), (0, 1), (0, 1), (0, 0))).reshape(-1, maps.shape[-1])


def unflattened(rows: jax.Array, fov_size_zyx: ZYX) -> jax.Array:
    """Return the maps (B, Z, Y, X, ...) of rows."""
    z, y, x = fov_size_zyx
    return rows.reshape(-1, z + 1, y + 1, x + 1, *rows.shape[1:])[:, :z, :y, :x]


def conv_relu(rows: jax.Array, kernel: jax.Array, bias: jax.Array, fov: ZYX) -> jax.Array:
    """Return relu(conv(rows) + bias), for a packed kernel and a bias in float32."""
    return _call("conv_relu", fov, _like(rows), rows, kernel, bias)


def conv_add(
    rows: jax.Array, kernel: jax.Array, bias: jax.Array, before: jax.Array, fov: ZYX
) -> tuple[jax.Array, jax.Array]:
    """Return before + conv(rows) + bias, and its relu."""
    return _call("conv_add", fov, [_like(rows), _like(rows)], rows, kernel, bias, before)


def conv_back(rows: jax.Array, kernel: jax.Array, active: jax.Array, before: jax.Array, fov: ZYX) -> jax.Array:
    """Return before + conv(rows) where `active`, the output of a relu, is positive, else before."""
    return _call("conv_back", fov, _like(rows), rows, kernel, active, before)


def weight_gradient(rows: jax.Array, gradient: jax.Array, fov: ZYX) -> jax.Array:
    """Return the gradient of the kernel, float32 (3, 3, 3, 32, 32), from the input and the gradient of the output."""
    blocks = min(MULTIPROCESSORS, -(-len(rows) // GRADIENT_ROWS))
    sums = jax.ShapeDtypeStruct((blocks, 3, 3, 3, CHANNELS, CHANNELS), jnp.float32)
    return _call("weight_gradient", fov, sums, rows, gradient).sum(0)


def _like(rows: jax.Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(rows.shape, rows.dtype)


def _tiling(num_rows: int) -> Tiling:
    """Return the fastest tiling: where each multiprocessor has one block at most, larger blocks hide more latency."""
    return ONE_BLOCK if num_rows <= MULTIPROCESSORS * ONE_BLOCK.rows else SOME_BLOCKS


def _shared_bytes(name: str, fov: ZYX, tiling: Tiling = ONE_BLOCK) -> int:
    reach = 2 * (fov[2] + 2)
    if name == "weight_gradient":
        return 2 * (3 * (GRADIENT_ROWS + reach) + GRADIENT_ROWS) * ROW_BYTES
    return 3 * (tiling.rows + reach) * ROW_BYTES


def _call(name: str, fov: ZYX, out: Any, rows: jax.Array, *others: jax.Array) -> Any:
    is_gradient, tiling = name == "weight_gradient", _tiling(len(rows))
    sizes = {
        "grid_x": out.shape[0] if is_gradient else -(-len(rows) // tiling.rows),
        "block_x": 32 * (GRADIENT_WARPS if is_gradient else tiling.warps),
        "shared_mem_bytes": _shared_bytes(name, fov, tiling),
    }
    sizes |= dict.fromkeys(("grid_y", "grid_z", "block_y", "block_z"), 1)
    attributes = {key: np.int32(size) for key, size in sizes.items()}
    source = _ptx(name, rows.dtype == jnp.bfloat16, fov, len(rows))
    return jax.ffi.ffi_call(TARGET, out)(rows, *others, name=name, kernel_type="ptx", kernel_data=source, **attributes)


@functools.cache
def _ptx(name: str, is_bfloat16: bool, fov: ZYX, num_rows: int) -> str:
    """Compile a kernel by NVRTC, which comes with JAX for CUDA.

    Raises
    ------
    OSError
        If NVRTC is not installed.
    RuntimeError
        If it fails.
    """
    constants = {
        **{name.upper(): 1, "BF16": int(is_bfloat16), "ROWS": num_rows},
        **dict(zip(("SIZE_Z", "SIZE_Y", "SIZE_X"), fov, strict=True)),
        **dict(zip(("TILES", "WARPS", "MIN_BLOCKS"), _tiling(num_rows), strict=True)),
        **{"GRADIENT_WARPS": GRADIENT_WARPS, "GRADIENT_ROWS": GRADIENT_ROWS},
    }
    capability = "".join(map(str, OLDEST))
    options = [f"--gpu-architecture=compute_{capability}", "-std=c++17"]
    options += [f"-D{key}={value}" for key, value in constants.items()]
    nvrtc, program, size = _nvrtc(), ctypes.c_void_p(), ctypes.c_size_t()
    source = Path(__file__).with_name("gpu.cu").read_bytes()
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), source, b"gpu.cu", 0, None, None)
    try:
        texts = (ctypes.c_char_p * len(options))(*map(str.encode, options))
        if nvrtc.nvrtcCompileProgram(program, len(options), texts):
            nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
            text = ctypes.create_string_buffer(size.value)
            nvrtc.nvrtcGetProgramLog(program, text)
            raise RuntimeError(f"gpu.cu: NVRTC says {text.value.decode()}")
        nvrtc.nvrtcGetPTXSize(program, ctypes.byref(size))
        text = ctypes.create_string_buffer(size.value)
        nvrtc.nvrtcGetPTX(program, text)
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return text.value.decode()


@functools.cache
def _nvrtc() -> ctypes.CDLL:
    return ctypes.CDLL(str(next(_libraries(), "libnvrtc.so")))


def _libraries() -> Iterator[Path]:
    """Find NVRTC among NVIDIA's packages."""
    spec = importlib.util.find_spec("nvidia")
    for folder in spec.submodule_search_locations or () if spec else ():
        yield from (path for path in sorted(Path(folder).rglob("libnvrtc.so.*")) if ".alt" not in path.name)


class Packed(NamedTuple):
    """Weights as the kernels need them: kernels and biases of the convolutions, and those of the last one."""

    convolutions: dict[str, tuple[jax.Array, jax.Array]]
    last: jax.Array
    last_bias: jax.Array


def pack(params: Mapping[str, Any], config: ModelConfig, precision: str) -> Packed:
    """Order the weights for the kernels, in the type in which these multiply."""
    names = [f"conv{module}_{part}" for module in range(config.depth) for part in "ab"]
    convolutions = {
        name: (packed_kernel(_kernel(params, name, precision)), jnp.asarray(params[f"{name}/biases"], jnp.float32))
        for name in names
    }
    last = jnp.asarray(params["conv_lom/weights"], precision)[0, 0, 0, :, 0]
    return Packed(convolutions, last, jnp.asarray(params["conv_lom/biases"], jnp.float32))


def _kernel(params: Mapping[str, Any], name: str, precision: str) -> jax.Array:
    """Return a kernel (3, 3, 3, 32, 32); that of image and POM is padded with zeros."""
    kernel = jnp.asarray(params[f"{name}/weights"], precision)
    return jnp.pad(kernel, ((0, 0),) * 3 + ((0, CHANNELS - kernel.shape[3]), (0, 0)))


def updated_pom(packed: Packed, image: jax.Array, pom_logit: jax.Array, depth: int) -> jax.Array:
    """Return the POM as `ffn.model.jax_network.updated_pom` does."""
    return _forward(packed, image, pom_logit, depth)[0]


def _forward(packed: Packed, image: jax.Array, pom_logit: jax.Array, depth: int) -> tuple[jax.Array, list[jax.Array]]:
    """Return also what the gradient needs: the input of every convolution, and of the last one."""
    fov = zyx(image.shape[1:])
    fields = jnp.stack([image, pom_logit], axis=-1).astype(packed.last.dtype)
    active = flattened(jnp.pad(fields, ((0, 0),) * 4 + ((0, CHANNELS - 2),)))
    net, inputs = jnp.zeros_like(active), [active]
    for module in range(depth):
        inside = conv_relu(active, *packed.convolutions[f"conv{module}_a"], fov)
        net, active = conv_add(inside, *packed.convolutions[f"conv{module}_b"], net, fov)
        inputs += [inside, active]
    update = jnp.matmul(active, packed.last, preferred_element_type=jnp.float32)
    return pom_logit + unflattened(update, fov) + packed.last_bias, inputs


def trainable_pom(
    params: Params, image: jax.Array, pom_logit: jax.Array, config: ModelConfig, precision: str
) -> jax.Array:
    """Return the same for weights as they are stored, with a gradient for them; image and POM have none."""

    @jax.custom_vjp
    def updated(params: Params, image: jax.Array, pom_logit: jax.Array) -> jax.Array:
        return updated_pom(pack(params, config, precision), image, pom_logit, config.depth)

    def forward(
        params: Params, image: jax.Array, pom_logit: jax.Array
    ) -> tuple[jax.Array, tuple[Params, list[jax.Array]]]:
        out, inputs = _forward(pack(params, config, precision), image, pom_logit, config.depth)
        return out, (params, inputs)

    def backward(saved: tuple[Params, list[jax.Array]], gradient: jax.Array) -> tuple[Params, None, None]:
        return _gradients(*saved, gradient, config.depth, precision), None, None

    updated.defvjp(forward, backward)
    return updated(params, image, pom_logit)


def _gradients(params: Params, inputs: list[jax.Array], gradient: jax.Array, depth: int, precision: str) -> Params:
    """Return the gradient of all weights, float32, from that of the updated POM."""
    fov, found = zyx(gradient.shape[1:]), {}
    along_rows = flattened(gradient[..., None])  # (rows, 1)
    last = params["conv_lom/weights"][0, 0, 0, :, 0].astype(precision).astype(jnp.float32)
    found["conv_lom/weights"] = (inputs[-1] * along_rows).sum(0)[None, None, None, :, None]
    found["conv_lom/biases"] = gradient.sum()[None]
    of_net = jnp.where(inputs[-1] > 0, along_rows * last, 0).astype(precision)

    def passed(name: str, entering: jax.Array, of_output: jax.Array) -> jax.Array:
        """Note the gradient of a convolution's weights; return its kernel for the way back."""
        of_kernel = weight_gradient(entering, of_output, fov)
        found[f"{name}/weights"] = of_kernel[..., : params[f"{name}/weights"].shape[3], :]
        found[f"{name}/biases"] = of_output.astype(jnp.float32).sum(0)
        return packed_kernel(backward(_kernel(params, name, precision)))

    for module in reversed(range(depth)):
        entering, inside = inputs[2 * module : 2 * module + 2]
        kernel = passed(f"conv{module}_b", inside, of_net)
        of_inside = conv_back(of_net, kernel, inside, jnp.zeros_like(of_net), fov)
        kernel = passed(f"conv{module}_a", entering, of_inside)
        if module:
            of_net = conv_back(of_inside, kernel, entering, of_net, fov)
    return found
