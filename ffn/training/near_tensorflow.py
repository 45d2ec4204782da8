"""Load TensorFlow from a node's local disk, so that a shared file system serves it once for a node, not for a rank."""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import subprocess
import sys
from pathlib import Path

from ffn.errors import VolumeError
from ffn.io.node_copy import Source, copy_sources, scratch_folder, trusted_copy
from ffn.io.open import files_in

PACKAGES = ("tensorflow", "nvidia")  # libraries for GPUs are found by their place beside TensorFlow
PLUGINS = "tensorflow-plugins"  # for other devices; TensorFlow looks for them only if it lies in site-packages itself
NAMES = ("nvidia", "tf_")  # how names of installed versions may begin
HEADERS = "include"  # folders that only compilers read: three quarters of the files
LOADING = 300  # seconds; our choice

log = logging.getLogger(__name__)


def load_from_node(folder: str) -> None:
    """Make this process import TensorFlow from a copy in a node's scratch folder; without a copy, nothing changes.

    Every process calls this before it imports TensorFlow. The first one on a node copies, the others wait for it. A
    copy is used if a process could load it.

    Parameters
    ----------
    folder : str
        Scratch folder of the node; may contain variables such as ``$TMPDIR``.
    """
    if "tensorflow" in sys.modules:
        return
    scratch, spec = scratch_folder(folder), importlib.util.find_spec("tensorflow")
    if scratch is None or spec is None or spec.origin is None:
        return
    site = Path(spec.origin).parents[1]
    if (site / PLUGINS).exists():
        log.warning("--stage-to: %s is not copied, as %s would not be found", site / "tensorflow", site / PLUGINS)
        return
    source = Source(site / "tensorflow", lambda: _version(site), lambda: _files(site), _require_loadable)
    copy_sources([source], scratch)
    if copy := trusted_copy(source, scratch):
        sys.path.insert(0, str(copy.parent))


def _version(site: Path) -> str:
    """Return what changes with the versions that are installed, and when they are installed again."""
    names = (path for path in site.glob("*.dist-info") if "tensorflow" in path.name or path.name.startswith(NAMES))
    states = [(path.name, path.stat().st_mtime_ns) for path in (site / "tensorflow/__init__.py", *sorted(names))]
    return hashlib.sha256(repr(states).encode()).hexdigest()[:16]


def _files(site: Path) -> list[Path]:
    folders = [str(site / name) for name in PACKAGES if (site / name).is_dir()]
    files = [Path(file) for folder in folders for file in files_in(folder)]
    return [file for file in files if HEADERS not in file.relative_to(site).parts]


def _require_loadable(folder: Path) -> None:
    """Raise VolumeError if a copy cannot be imported, as where nothing may be executed from that disk."""
    program = f"import sys; sys.path.insert(0, {str(folder)!r}); import tensorflow"
    try:
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=LOADING)
    except subprocess.TimeoutExpired:
        raise VolumeError(f"it took more than {LOADING} s to load from {folder}") from None
    except subprocess.CalledProcessError as error:
        reason = error.stderr.strip().rpartition("\n")[2]
        raise VolumeError(f"it cannot be loaded from {folder}: {reason or error}") from None
