"""Fixtures for all tests: the real data, which is never part of the repository, and what machines may lack."""

import colorsys
import fcntl
import gc
import importlib.util
import itertools
import os
import shutil
import signal
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ffn.machine.gpu import jax_gpus
from ffn.machine.schedulers import RANK_VARIABLES

from .small_run import SMALL_RUN, Workflow

WHOLE_RUN_SECONDS = 1800  # a hang, however busy the machine is
REPOSITORY = Path(__file__).resolve().parents[1]
# Folders and files of tests/, by the time that they take; `finished` is made in the first.
LONGEST = ("cluster", "integration", "workflow/test_leaves.py", "workflow/test_pipeline.py", "workflow", "stages")
APART = "tests/workflow/"  # one process would take longer for it than another for the rest
XLA_FLAGS = os.environ.get("XLA_FLAGS", "")
MEMORY_DISK, ROOM = "/dev/shm", 8 * 2**30  # bytes


def pytest_configure():
    """Let the programs under test be interrupted, also where tests run in the background of a script.

    Their files lie in memory if it has room for them: there, fsync takes no time.
    """
    if os.path.isdir(MEMORY_DISK):
        disk = os.statvfs(MEMORY_DISK)
        if disk.f_bavail * disk.f_frsize > ROOM and not disk.f_flag & os.ST_NOEXEC:  # some tests write programs
            os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", MEMORY_DISK)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell makes its background ignore it, by inheritance
    gc.disable()  # until all tests are collected: imports leave no garbage


def pytest_collection_finish():
    """Let the garbage collector leave alone what was imported and collected, a million objects that stay."""
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items):
    """Mark what needs real data, for ``-m 'not fib25'``, and give time to what may have to wait for a whole run.

    What takes longest begins first, so that the processes that run tests side by side end together.
    """
    places = [REPOSITORY / "tests" / name for name in LONGEST]
    items.sort(
        key=lambda item: next((n for n, place in enumerate(places) if item.path.is_relative_to(place)), len(LONGEST))
    )
    for item in items:
        fixtures = set(getattr(item, "fixturenames", ()))
        if {"shared_fib25", "shared_checkpoint"} & fixtures:
            item.add_marker("fib25")
        if {"finished", "undisturbed", "stubbed"} & fixtures and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(WHOLE_RUN_SECONDS))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Of tests side by side, let those of a folder, or of a file in `APART`, run in one process."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFolder(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            file = nodeid.partition("::")[0]
            return file if file.startswith(APART) else file.rpartition("/")[0]

    return ByFolder(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    """In CI, fail a test that is skipped, unless it is marked as one that needs a GPU."""
    report = yield
    return report if item.get_closest_marker("gpu") else _fail_if_skipped_in_ci(report)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report():
    """In CI, fail a module that is skipped."""
    return _fail_if_skipped_in_ci((yield))


def _fail_if_skipped_in_ci(report):
    if report.skipped and not hasattr(report, "wasxfail") and os.environ.get("CI") not in (None, "", "false"):
        path, line, reason = report.longrepr
        report.outcome = "failed"
        report.longrepr = f"{path}:{line}: {reason}. CI has to install it: only tests marked gpu may be skipped there."
    return report


@pytest.fixture(scope="session", autouse=True)
def compiled_once():
    """Let JAX compile a function once for all processes and all later tests of this checkout: that takes seconds."""
    settings = {
        "jax_compilation_cache_dir": str(REPOSITORY / "build/jax"),
        "jax_persistent_cache_min_compile_time_secs": 0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    os.environ.update({name.upper(): str(value) for name, value in settings.items()})
    if jax := sys.modules.get("jax"):  # imported by the modules of tests
        for name, value in settings.items():
            jax.config.update(name, value)


@pytest.fixture(autouse=True)
def own_xla_flags(monkeypatch):
    """Take back the flags that a training sets for its process: with others, JAX compiles every function anew."""
    monkeypatch.setenv("XLA_FLAGS", XLA_FLAGS)


@pytest.fixture
def no_launcher(monkeypatch):
    """Let no launcher have started this process."""
    for name in filter(None, itertools.chain.from_iterable(RANK_VARIABLES)):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def gpu():
    """The GPU that JAX takes; skips without one."""
    if gpus := jax_gpus():
        return gpus[0]
    pytest.skip("no GPU")


@pytest.fixture(params=["cpu", pytest.param("gpu", marks=pytest.mark.gpu)])
def jax_device(request):
    """Device of JAX of each kind; the test chooses it."""
    if request.param == "gpu":
        return request.getfixturevalue("gpu")
    return pytest.importorskip("jax").devices("cpu")[0]


@pytest.fixture(scope="session")
def cloud_volume():
    """Class that reads Neuroglancer volumes independently of our writer; its imports warn."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module("cloudvolume").CloudVolume


@pytest.fixture(scope="session")
def shared_dir():
    """Folder of the real data: $FFN_SHARED, or `shared` next to the repository; skips without it."""
    folder = Path(os.environ.get("FFN_SHARED", REPOSITORY.parent / "shared"))
    if not (folder / "data").is_dir():
        pytest.skip(f"no real data in {folder}; FFN_SHARED may name another folder")
    return folder


@pytest.fixture(scope="session")
def shared_fib25(shared_dir):
    """Folder with the FIB-25 cube: `raw/`, `labels_z000-170.h5`, `labels_neuroproof_z000-170.h5`."""
    return _existing(shared_dir / "data/fib25")


@pytest.fixture(scope="session")
def shared_checkpoint(shared_dir):
    """Prefix of the published TF1 checkpoint."""
    prefix = shared_dir / "data/fib25_ffn_checkpoint/model.ckpt-27465036"
    _existing(prefix.with_name(prefix.name + ".index"))
    return prefix


@pytest.fixture(scope="session")
def finished(tmp_path_factory, worker_id):
    """The whole small run, undisturbed; tests read it and must not change it. Processes side by side have one."""
    folder = tmp_path_factory.getbasetemp()
    folder = (folder if worker_id == "master" else folder.parent) / "undisturbed"
    workflow, output = Workflow(folder, SMALL_RUN), folder / "output.txt"
    with open(f"{folder}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not output.exists():
            said = workflow.succeed()
            output.write_text(said)
    return workflow


@pytest.fixture(scope="session")
def needs_horovod():
    """Skip without Horovod."""
    if importlib.util.find_spec("horovod") is None:
        pytest.skip("Horovod is not installed")


@pytest.fixture(scope="session")
def needs_mpi(needs_horovod):
    """Skip without a Horovod that was built with MPI, or without MPI's launcher."""
    (folder,) = importlib.util.find_spec("horovod").submodule_search_locations
    libraries = Path(folder).glob("tensorflow/mpi_lib*.so")
    if not shutil.which("mpirun") or not any(b"libmpi.so" in library.read_bytes() for library in libraries):
        pytest.skip("no MPI: mpirun is missing, or Horovod was built without it")


@pytest.fixture(scope="session")
def needs_mpi4py():
    """Skip without mpi4py, or without MPI's launcher."""
    if not shutil.which("mpirun") or importlib.util.find_spec("mpi4py") is None:
        pytest.skip("no MPI: mpirun or mpi4py is missing")


def _existing(path):
    if not path.exists():
        pytest.skip(f"{path} is missing")
    return path


@pytest.fixture(scope="session")
def panel_colours():
    """Function from a screenshot of four panels to the segment colours in each: xy, xz, 3d, yz."""
    from ffn.viewing.viewer import BROWSERS

    if not any(map(shutil.which, BROWSERS)):
        pytest.skip("no Chromium; Debian's package is called chromium")

    def colours(picture):
        with Image.open(picture) as image:
            width, height = image.size[0] // 2, image.size[1] // 2
            corners = {"xy": (0, 0), "xz": (1, 0), "3d": (0, 1), "yz": (1, 1)}
            places = {name: (x * width, y * height) for name, (x, y) in corners.items()}
            return {name: _hues(image.crop((x, y, x + width, y + height))) for name, (x, y) in places.items()}

    return colours


def _hues(panel):
    """Hues, in twelve classes, that colour at least half a percent of a panel."""
    pixels = np.asarray(panel.convert("RGB")).reshape(-1, 3) / 255
    saturated = pixels[np.ptp(pixels, axis=1) > 0.25]
    hues = [int(12 * colorsys.rgb_to_hsv(*pixel)[0] + 0.5) % 12 for pixel in saturated]
    return {hue for hue in range(12) if hues.count(hue) > len(pixels) / 200}
