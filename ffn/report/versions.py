"""Versions of the software, for the report."""

from __future__ import annotations

import platform
from importlib import metadata

PACKAGES = (
    "tensorflow-cpu",
    "tensorflow",
    "keras",
    "horovod",
    "openvino",
    "jax",
    "numpy",
    "scipy",
    "scikit-image",
    "h5py",
    "tensorstore",
    "kimimaro",
    "neuroglancer",
    "snakemake",
)


def package_versions() -> dict[str, str]:
    """Return the versions of Python and of the installed packages that results depend on."""
    versions = {"Python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions
