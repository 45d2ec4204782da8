"""What `auto` takes, decided once: the first job writes it to a folder, and all jobs on all machines read it there."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import yaml

from ffn.config import ENGINES, ModelConfig
from ffn.errors import ConfigError
from ffn.io import atomic
from ffn.machine.cpu import cpu_name
from ffn.machine.gpu import gpu_visible
from ffn.machine.jax_device import jax_gpus
from ffn.model.precision import PRECISIONS

log = logging.getLogger(__name__)

FOLDER = "machine"
ON_GPUS = {"tensorflow": "TensorFlow", "jax": "JAX"}  # engines that compute on a GPU, if they see one


@dataclass(frozen=True)
class Choice:
    """What runs the network, and in which number format.

    Parameters
    ----------
    engine, precision : str
        Values of these options, not ``auto``.
    reason : str
        Why `auto` took them.
    gpu : bool
        Whether it took them for a GPU.
    cpu : str
        Where it took them; empty if Linux does not report it.
    """

    engine: str
    precision: str
    reason: str = ""
    gpu: bool = False
    cpu: str = field(default="", compare=False)


def choice_name(purpose: str, engine: str, precision: str, model: ModelConfig) -> str:
    """Return the file name of a choice: what is to be chosen, and the network that it is chosen for.

    Examples
    --------
    >>> choice_name("inference", "auto", "float32", ModelConfig())
    'inference-auto-float32-depth-9-features-32-fov-33-33-33.yaml'
    """
    fov = "-".join(map(str, model.fov_size_zyx))
    return f"{purpose}-{engine}-{precision}-depth-{model.depth}-features-{model.features}-fov-{fov}.yaml"


def choose_once(path: Path | None, choose: Callable[[], Choice]) -> Choice:
    """Return the recorded choice; if there is none, choose and record.

    Of several jobs that choose at the same time, one records its choice and all return it.

    Parameters
    ----------
    path : Path, optional
        The record. None chooses for this job alone.
    choose : callable
        Chooses for this machine.

    Raises
    ------
    ConfigError
        If the record is damaged, made for a GPU where there is none, or for a CPU where its engine sees a GPU.
    """
    choice = _read(path)
    if choice is None:
        choice = mine = replace(choose(), cpu=cpu_name())
        if path is not None:
            atomic.write_text_once(path, yaml.safe_dump(asdict(mine), sort_keys=False))
            choice = _read(path) or mine  # another job may have been first
    log.info("auto: %s %s, because %s%s", choice.engine, choice.precision, choice.reason, f" ({path})" if path else "")
    here = cpu_name()
    if not choice.gpu and choice.cpu and here and choice.cpu != here:
        log.warning(
            "%s: %s %s was chosen on another CPU (%s) than this one (%s), where it may be slow. Use nodes of one kind, "
            "or set engine and precision",
            *(path, choice.engine, choice.precision, choice.cpu, here),
        )
    if choice.engine in ON_GPUS and choice.gpu != sees_gpu(choice.engine):
        chosen, seen, remedy = (
            ("a GPU", "none", "Start this job where there is one")
            if choice.gpu
            else ("a CPU", "a GPU", "Hide it (CUDA_VISIBLE_DEVICES=-1)")
        )
        raise ConfigError(
            f"{path}: {choice.engine} {choice.precision} was chosen for {chosen}, and "
            f"{ON_GPUS[choice.engine]} sees {seen} "
            f"here. {remedy}, or set engine and precision"
        )
    return choice


def sees_gpu(engine: str) -> bool:
    """Return whether this engine would compute on a GPU here."""
    return bool(jax_gpus()) if engine == "jax" else engine == "tensorflow" and gpu_visible()


def _read(path: Path | None) -> Choice | None:
    if path is None or not path.is_file():
        return None
    try:
        found = yaml.safe_load(path.read_text())
        choice = Choice(**{name: found[name] for name in ("engine", "precision", "reason", "gpu", "cpu")})
        if (choice.engine in ENGINES and choice.precision in PRECISIONS) and (
            isinstance(choice.reason, str) and isinstance(choice.gpu, bool)
        ):
            return choice
    except (yaml.YAMLError, UnicodeDecodeError, KeyError, TypeError):
        pass
    raise ConfigError(
        f"{path}: cannot be read, expected what 'auto' took as engine and precision. "
        "Remove it, and what was computed with it (the run's segmentation, or the training), to choose again"
    )
