"""Record how an output was made, without times and host names, so that reruns give the same bytes."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from ffn import __version__


def provenance(stage: str, config: BaseModel | None = None, **inputs: object) -> dict[str, Any]:
    """Describe how an output was made.

    Parameters
    ----------
    stage : str
        Name of the command.
    config : pydantic model, optional
        Section of the configuration, recorded completely.
    **inputs
        Paths and values that the result depends on, such as ``image="raw.h5:raw"``.

    Returns
    -------
    dict
        Keys ``stage``, ``version``, ``config`` and ``inputs``, ready for JSON.
    """
    return {
        "stage": stage,
        "version": __version__,
        "config": {} if config is None else config.model_dump(mode="json"),
        "inputs": {name: str(value) for name, value in inputs.items()},
    }
