"""The kernels for inference against a plain NumPy network, with vectors of every size, emulated ones on every CPU."""

import functools
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ffn import kernels
from ffn.kernels import inference, vector_lanes
from ffn.kernels.inference import KernelNetwork, obstacle

from .conftest import FOR_TESTS, INSTRUCTIONS, SANITIZERS

NETWORKS = [  # depth, features, FOV, batch
    (1, 32, (5, 7, 9), 1),
    (2, 32, (9, 5, 13), 3),
    (3, 16, (7, 3, 5), 2),
    (2, 48, (5, 9, 3), 1),
    (2, 72, (3, 5, 33), 1),
    (2, 8, (15, 17, 19), 1),
    (1, 20, (1, 1, 1), 2),
]


@pytest.fixture(scope="session")
def emulated_library(float32_objects: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = tmp_path_factory.mktemp("emulated") / "library.so"
    subprocess.run(["c++", "-shared", *float32_objects, "-pthread", "-o", library], check=True)
    return library


@pytest.fixture
def emulated(emulated_library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use that library."""
    monkeypatch.setattr(inference, "library_path", lambda: emulated_library)


def random_network(depth: int, features: int) -> list[np.ndarray]:
    """Return weights and biases of all convolutions in turn."""
    rng = np.random.default_rng(0)
    shapes = [(3, 3, 3, features if i else 2, features) for i in range(2 * depth)] + [(1, 1, 1, features, 1)]
    weights = []
    for shape in shapes:
        weights += [rng.normal(0, np.prod(shape[:-1]) ** -0.5, shape), rng.normal(0, 0.1, shape[-1])]
    return [each.astype(np.float32) for each in weights]


def random_fovs(fov: tuple[int, int, int], batch: int) -> np.ndarray:
    """Return images and POMs."""
    return np.random.default_rng(1).normal(size=(2, batch, *fov)).astype(np.float32)


@functools.cache
def reference(depth: int, features: int, fov: tuple[int, int, int], batch: int) -> np.ndarray:
    """Compute the network for FOVs (B, Z, Y, X) in float64, tap by tap."""
    weights, (image, pom) = random_network(depth, features), random_fovs(fov, batch)
    *pairs, (lom, lom_bias) = zip(weights[::2], weights[1::2], strict=True)
    net, inner = np.zeros(1), np.stack([image, pom], axis=-1).astype(np.float64)
    for index, (kernel, bias) in enumerate(pairs):
        padded = np.pad(inner, [(0, 0), (1, 1), (1, 1), (1, 1), (0, 0)])
        windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3, 3), axis=(1, 2, 3))
        value = np.einsum("bzyxiklm,klmio->bzyxo", windows, kernel, optimize=True) + bias
        net = net + value if index % 2 else net
        inner = np.maximum(net if index % 2 else value, 0)
    return pom + (inner @ lom[0, 0, 0])[..., 0] + lom_bias


@pytest.mark.slow
@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize(("depth", "features", "fov", "batch"), NETWORKS)
def test_same_as_direct_convolution_with_any_vectors_and_threads(depth, features, fov, batch):
    weights, (image, pom) = random_network(depth, features), random_fovs(fov, batch)
    found = [
        KernelNetwork(weights, fov, threads, lanes).predict(image, pom) for lanes in INSTRUCTIONS for threads in (1, 3)
    ]
    np.testing.assert_allclose(found[0], reference(depth, features, fov, batch), atol=1e-5, rtol=0)
    assert all(np.array_equal(each, found[0]) for each in found)


@pytest.mark.skipif(not inference.library_path().exists(), reason="make setup has not built the library")
@pytest.mark.parametrize("lanes", [lanes for lanes in INSTRUCTIONS if lanes <= vector_lanes()])
def test_same_as_direct_convolution_on_this_cpu(lanes):
    for depth, features, fov, batch in NETWORKS:
        weights, (image, pom) = random_network(depth, features), random_fovs(fov, batch)
        found = [KernelNetwork(weights, fov, threads, lanes).predict(image, pom) for threads in (1, 3)]
        np.testing.assert_allclose(found[0], reference(depth, features, fov, batch), atol=1e-5, rtol=0)
        assert np.array_equal(*found)


@pytest.mark.slow
@pytest.mark.usefixtures("emulated")
def test_a_fov_gets_the_same_answer_in_a_batch_alone_and_after_others():
    network = KernelNetwork(random_network(2, 32), (5, 7, 9), threads=2)
    image, pom = random_fovs((5, 7, 9), 3)
    together = network.predict(image, pom)
    alone = [network.predict(image[i : i + 1], pom[i : i + 1])[0] for i in (2, 0, 1)]
    assert np.array_equal(together[[2, 0, 1]], alone)


@pytest.mark.slow
@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("lanes", INSTRUCTIONS)
def test_not_a_number_is_not_hidden(lanes):
    image, pom = random_fovs((5, 7, 9), 1)
    image[0, 2, 3, 4] = np.nan
    assert np.isnan(KernelNetwork(random_network(2, 32), (5, 7, 9), 1, lanes).predict(image, pom)).any()


REFUSED = """
import resource, sys
from pathlib import Path
from ffn.kernels import inference
from tests.unit.kernels.test_inference import KernelNetwork, np, random_fovs, random_network
inference.library_path = lambda: Path(sys.argv[1])
weights, fov, lanes = random_network(1, 32), (33, 33, 33), 4
network = KernelNetwork(weights, fov, 1, lanes)
pages = int(Path("/proc/self/statm").read_text().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + 150 * 2**20,) * 2)
many = np.zeros((64, *fov), np.float32)
for attempt in (lambda: KernelNetwork(weights, fov, 5000, lanes), *[lambda: network.predict(many, many)] * 2):
    try:
        attempt()
    except MemoryError as error:
        print(error)
network.predict(*random_fovs(fov, 1))
print("goes on")
"""


@pytest.mark.slow
def test_threads_and_memory_that_the_system_refuses_are_an_error_each_time(emulated_library):
    root = Path(__file__).parents[3]
    command = [sys.executable, "-c", REFUSED, str(emulated_library)]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    lines = ["the network's threads and buffers", *["the network's buffers"] * 2, "goes on"]
    assert (done.returncode, done.stdout.splitlines()) == (0, lines), done.stderr


@pytest.fixture(scope="session")
def sanitized_driver(sanitized_objects: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One call under ASan and UBSan, in buffers of the exact size that hold NaN at first."""
    driver, source = tmp_path_factory.mktemp("inference") / "driver", FOR_TESTS / "inference_driver.cc"
    flags = ["-std=c++20", *SANITIZERS, "-pthread"]
    subprocess.run(["c++", *flags, source, *sanitized_objects, "-o", driver], check=True)
    return driver


@pytest.mark.slow
@pytest.mark.parametrize(
    ("depth", "features", "fov", "batch"),
    [*NETWORKS[-2:], (1, 32, (1, 5, 3), 2), (2, 16, (3, 1, 7), 3), (1, 40, (4, 6, 37), 1)],
)
@pytest.mark.parametrize("lanes", INSTRUCTIONS)
def test_no_stray_access_and_no_undefined_behaviour(lanes, depth, features, fov, batch, sanitized_driver):
    weights, (image, pom) = random_network(depth, features), random_fovs(fov, batch)
    numbers = map(str, (lanes, batch, *fov, features, 2 * depth, 2))
    arrays = b"".join(array.tobytes() for array in (*weights, image, pom))
    result = subprocess.run([sanitized_driver, *numbers], input=arrays, capture_output=True)
    assert result.stderr.decode() == ""
    found = np.frombuffer(result.stdout, np.float32).reshape(pom.shape)
    np.testing.assert_allclose(found, reference(depth, features, fov, batch), atol=1e-5, rtol=0)


def test_says_what_is_in_the_way(monkeypatch, tmp_path):
    path = tmp_path / "library.so"
    monkeypatch.setattr(inference, "library_path", lambda: path)
    assert obstacle(32).startswith(f"{path} is missing")
    path.write_bytes(b"")
    assert str(obstacle(32)).startswith(f"{path} does not load")
    assert "257 features" in obstacle(257)


def test_a_library_of_other_sources_is_another_one(monkeypatch, tmp_path):
    monkeypatch.setattr(kernels, "__file__", f"{tmp_path}/__init__.py")
    found = set()
    for text in ("int a;", "int b;"):
        (tmp_path / "a.cc").write_text(text)
        found.add(kernels.library_of.__wrapped__("inference"))
    assert len(found) == 2


@pytest.mark.parametrize(
    ("flags", "lanes"), [("sse2", 4), ("avx2", 4), ("avx2 fma", 8), ("avx2 fma avx512f avx512_bf16", 16)]
)
def test_vectors_are_those_of_the_cpu(flags, lanes, monkeypatch):
    monkeypatch.setattr(kernels, "cpu_flags", lambda: frozenset(flags.split()))
    assert vector_lanes() == lanes
