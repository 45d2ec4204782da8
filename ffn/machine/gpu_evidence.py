"""Why TensorFlow sees no GPU: what the machine, the driver and TensorFlow's build say about it."""

from __future__ import annotations

import ctypes.util
import importlib.util
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

PCI = Path("/sys/bus/pci/devices")
DRIVER = Path("/proc/driver/nvidia/version")
SMI = ("nvidia-smi", "--query-gpu=name,driver_version,compute_cap", "--format=csv,noheader")
SMI_SECONDS = 20  # a driver that is loaded anew for each call takes some seconds
# By the major version of CUDA. Source: NVIDIA, CUDA compatibility, minor version compatibility; release notes.
OLDEST_DRIVER = {12: 525, 13: 580}
NEWEST_CAPABILITY = {12: (12, 1)}
LIBRARIES = {  # a module of the pip packages, and the library in it
    "nvidia.cuda_runtime": "cudart",
    "nvidia.cublas": "cublas",
    "nvidia.cudnn": "cudnn",
    "nvidia.cufft": "cufft",
    "nvidia.cusolver": "cusolver",
    "nvidia.cusparse": "cusparse",
}

Capability = tuple[int, ...]


class Card(NamedTuple):
    """What `nvidia-smi` says about one GPU."""

    name: str
    driver: str
    capability: Capability


@dataclass(frozen=True)
class GpuEvidence:
    """What is known about the GPUs of this machine.

    Parameters
    ----------
    cards : tuple of Card
        Those that the driver knows.
    has_card : bool
        Whether there is an NVIDIA card at all, with or without a driver.
    complaint : str
        What `nvidia-smi` said instead of listing cards.
    visible : str or None
        ``CUDA_VISIBLE_DEVICES``.
    cuda : str
        Version of CUDA that TensorFlow was built with, empty if without.
    oldest : tuple of int
        Oldest compute capability that TensorFlow was built for.
    missing : tuple of str
        CUDA libraries that neither pip nor the system has.
    """

    cards: tuple[Card, ...] = ()
    has_card: bool = False
    complaint: str = ""
    visible: str | None = None
    cuda: str = ""
    oldest: Capability = ()
    missing: tuple[str, ...] = ()


def gather() -> GpuEvidence:
    """Collect the evidence; imports TensorFlow."""
    import tensorflow as tf

    build = tf.sysconfig.get_build_info()
    known, complaint = cards()
    cuda = str(build.get("cuda_version", "")) if build.get("is_cuda_build") else ""
    return GpuEvidence(
        known,
        bool(known) or DRIVER.exists() or _is_on_the_bus(),
        complaint,
        os.environ.get("CUDA_VISIBLE_DEVICES"),
        cuda,
        min(map(_capability, build.get("cuda_compute_capabilities", ())), default=()),
        tuple(library for module, library in LIBRARIES.items() if cuda and not _has(module, library)),
    )


def cards() -> tuple[tuple[Card, ...], str]:
    """Ask the driver for its cards.

    Returns
    -------
    tuple of Card, str
        The cards, or none and what was said instead, if anything.
    """
    try:
        done = subprocess.run(SMI, capture_output=True, text=True, timeout=SMI_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as reason:
        return (), "there is no nvidia-smi" if isinstance(reason, OSError) else "nvidia-smi does not answer"
    rows = [line.rsplit(", ", 2) for line in done.stdout.splitlines()]
    found = tuple(Card(row[0], row[1], _capability(row[2])) for row in rows if len(row) == 3 and row[1][:1].isdigit())
    return (found, "") if found and not done.returncode else ((), " ".join((done.stdout + done.stderr).split()))


def why_none(evidence: GpuEvidence) -> str:
    """Return in one line why TensorFlow sees no GPU: the first reason, in the order in which they are removed.

    Examples
    --------
    >>> why_none(GpuEvidence((Card("A100", "550.54", (8, 0)),), has_card=True))
    'TensorFlow is built without CUDA. Run make setup GPU=1'
    """
    cuda = int(evidence.cuda.split(".")[0] or 0)
    names = ", ".join(sorted({card.name for card in evidence.cards}))
    if not evidence.has_card:
        return "no NVIDIA card here. If there is one, a container needs docker --gpus all or apptainer --nv to see it"
    if not evidence.cards:
        return f"an NVIDIA card, but its driver does not answer ({evidence.complaint}). Install the driver, or reboot"
    if _hides_all(evidence.visible, len(evidence.cards)):
        return f"CUDA_VISIBLE_DEVICES={evidence.visible!r} hides {names}. Unset it"
    if not cuda:
        return "TensorFlow is built without CUDA. Run make setup GPU=1"
    if evidence.missing:
        return f"CUDA libraries are missing: {', '.join(evidence.missing)}. Run make setup GPU=1"
    driver, needed = evidence.cards[0].driver, OLDEST_DRIVER.get(cuda, 0)
    if int(driver.split(".")[0]) < needed:
        return f"NVIDIA driver {driver} is too old for CUDA {cuda}, which needs {needed} or newer. Update the driver"
    if all(() < card.capability < evidence.oldest for card in evidence.cards):
        return f"{names} is older than TensorFlow supports: compute capability {_dotted(evidence.oldest)} or higher"
    newest = NEWEST_CAPABILITY.get(cuda)
    if newest and all(card.capability > newest for card in evidence.cards):
        return f"{names} is newer than CUDA {cuda} supports: compute capability {_dotted(newest)} at most"
    return (
        f"unknown: {names}, driver {driver} and CUDA {evidence.cuda} fit. TensorFlow says more: "
        "python -c 'import tensorflow as tf; tf.config.list_physical_devices()'"
    )


def _is_on_the_bus() -> bool:
    """Whether a display controller of NVIDIA is on the PCI bus."""
    try:
        found = [(place / "vendor", place / "class") for place in PCI.iterdir()]
        return any(v.read_text().strip() == "0x10de" and c.read_text().startswith("0x03") for v, c in found)
    except OSError:
        return False


def _has(module: str, library: str) -> bool:
    try:
        from_pip = importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        from_pip = False
    return from_pip or ctypes.util.find_library(library) is not None


def _hides_all(visible: str | None, num_cards: int) -> bool:
    """Whether CUDA_VISIBLE_DEVICES begins with something that is no GPU; CUDA ignores what follows."""
    first = (visible or "").split(",")[0].strip()
    if visible is None or first.startswith(("GPU-", "MIG-")):
        return False
    return not first.isdigit() or int(first) >= num_cards


def _capability(text: str) -> Capability:
    """Read a compute capability: 8.9, sm_89, compute_90, sm_120a.

    Examples
    --------
    >>> _capability("8.9"), _capability("sm_89"), _capability("sm_120a")
    ((8, 9), (8, 9), (12, 0))
    """
    digits = "".join(re.findall(r"\d", text))
    return (int(digits[:-1]), int(digits[-1])) if len(digits) > 1 else ()


def _dotted(capability: Capability) -> str:
    return ".".join(map(str, capability))
