"""Run one step: `python -m gpu_check STEP`."""

from __future__ import annotations

import importlib
import sys

from .common import Report

STEPS = {
    "tiny": "prepare.tiny",
    "reference": "prepare.reference",
    "records": "training_runs.prepare",
    "versions": "machine.versions",
    "machine": "machine.ceilings",
    "torchconv": "machine.torchconv",
    "correct": "network.correct",
    "rates": "network.rates",
    "onestep": "network.onestep",
    "profile": "profiling.profile",
    "flood1": "flooding.one_canvas",
    "flood8": "flooding.eight_canvases",
    "floodfast": "flooding.in_large_steps",
    "flood32": "flooding.in_float32",
    "training": "training.rates",
    "train_fib25": "training_runs.fib25",
    "train_snemi3d": "training_runs.snemi3d",
}


def main() -> None:
    """Run the step that the command line names, and record an error before it ends the process."""
    name = sys.argv[1]
    report = Report(name)
    module, function = STEPS[name].split(".")
    try:  # imports belong to it: a package may be missing
        getattr(importlib.import_module(f"gpu_check.{module}"), function)(report)
    except Exception as error:
        report.add(error=f"{type(error).__name__}: {str(error)[:500]}")
        raise


if __name__ == "__main__":
    main()
