"""Load TensorFlow from a node's local disk, so that a shared file system serves it once for a node, not for a rank."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from pathlib import Path

from ffn.io.node_copy import Source, copy_sources, scratch_folder, trusted_copy
from ffn.io.open import files_in

PACKAGES = ("tensorflow", "nvidia")  # the libraries of a GPU are found by their place beside TensorFlow
HEADERS = "tensorflow/include"  # two thirds of the files, which only compilers read


def load_from_node(folder: str) -> None:
    """Make this process import TensorFlow from a copy in a node's scratch folder; without a copy, nothing changes.

    Every process calls this before it imports TensorFlow. The first one on a node copies, the others wait for it.

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
    source = Source(site / "tensorflow", lambda: _version(site), lambda: _files(site))
    copy_sources([source], scratch)
    if copy := trusted_copy(source, scratch):
        sys.path.insert(0, str(copy.parent))


def _version(site: Path) -> str:
    """Return what changes with the versions that are installed, and when they are installed again."""
    installed = [(path.name, path.stat().st_mtime_ns) for path in site.glob("*.dist-info")]
    known = sorted(entry for entry in installed if entry[0].startswith(PACKAGES))
    return hashlib.sha256(repr(known).encode()).hexdigest()[:16]


def _files(site: Path) -> list[Path]:
    folders = [str(site / name) for name in PACKAGES if (site / name).is_dir()]
    files = [Path(file) for folder in folders for file in files_in(folder)]
    return [file for file in files if not file.is_relative_to(site / HEADERS)]
