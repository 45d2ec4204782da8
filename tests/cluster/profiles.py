"""The repository's profiles, cut to the size of the test cluster: as a site does it, in a copy."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import yaml

from ..small_run import ROOT

# What a site sets: here nodes of two cores in name, of which the machine under them has two in all.
SITE = {
    "jobs": 6,
    "latency-wait": 20,
    "cores": 2,
    "default-resources": {"runtime": 10},
    "set-threads": {"segment": 1, "agglomerate": 1},
    "groups": {"segment": "segment", **dict.fromkeys(("reconcile", "agglomerate", "merge", "fill"), "finish")},
    "group-components": {"segment": 2},
}
# Fixed, because every attempt would double them, and the nodes are small.
TRAIN = {"ranks_per_node": 1, "cores_per_node": 1, "runtime": 20, "mem_mb": 1000}


def site_profile(folder: Path, name: str, **changes: Any) -> Path:
    """Copy a profile to `folder` with the site's values and return the copy."""
    place = folder / "profiles" / name
    if not place.exists():
        shutil.copytree(ROOT / "profiles" / name, place)
        profile = yaml.safe_load((place / "config.yaml").read_text())
        profile |= SITE | changes
        profile["set-resources"]["train"] |= TRAIN
        (place / "config.yaml").write_text(yaml.safe_dump(profile, sort_keys=False))
    return place
