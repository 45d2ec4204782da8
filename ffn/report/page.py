"""The stage `report`: one self-contained HTML page about a run."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import logging
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

import jinja2

from ffn import __version__
from ffn.evaluation.scores import METRICS, NUM_RESAMPLES
from ffn.io.atomic import write_text
from ffn.io.section_faults import read_faults
from ffn.report.charts import sweep_charts, training_charts
from ffn.report.look import first_look
from ffn.report.pictures import close_up, open_volumes, slices
from ffn.report.run_folder import VolumeFiles, read_costs, read_output, read_volumes
from ffn.report.verdict import (
    cell_text,
    figure,
    method_names,
    percent,
    run_lengths,
    score_rows,
    verdict_on,
    warnings_of,
)
from ffn.training.metrics import best_validation, read_metrics
from ffn.viewing import LINKS_FOLDER
from ffn.workflow.paths import RunPaths

log = logging.getLogger(__name__)

PACKAGES = """tensorflow-cpu tensorflow keras horovod openvino jax numpy scipy scikit-image h5py tensorstore kimimaro
neuroglancer snakemake""".split()  # that results depend on
TEMPLATES = Path(__file__).parent / "templates"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Write an HTML page about a run (pictures, curves, scores, cost of each stage).

    example:
      ffn report results/demo --out results/demo/report.html
    """
    parser.add_argument("run", metavar="RUN_DIR", help="folder of the run, such as results/demo")
    parser.add_argument("--out", metavar="FILE.html", help="page to write (default: RUN_DIR/report.html)")
    parser.add_argument("--first", action="store_true", help="write only the first look at the image and its labels")


def run(arguments: argparse.Namespace) -> None:
    """Run the command."""
    report(arguments.run, arguments.out or Path(arguments.run) / "report.html", arguments.first)


def report(run_dir: str | Path, out: str | Path, first: bool = False) -> None:
    """Write the report of a run, or its first look alone (see `ffn.report.look`). It says what the run lacks.

    The page needs no other file and no network.

    Raises
    ------
    EvaluationError
        If `run_dir` is not the folder of a run, one of its files is damaged, or `out` cannot be written.
    """
    page = (render_first if first else render)(Path(run_dir))
    write_text(out, page)
    log.info("%s: %.1f MB", out, len(page) / 1e6)


def render(run_dir: Path) -> str:
    """Return the HTML of the page."""
    environment = _environment()
    environment.filters.update(figure=figure, percent=percent, duration=duration)
    environment.globals.update(cell_text=cell_text)
    volumes = read_volumes(run_dir)
    paths = RunPaths(run_dir)
    model = Path(paths.folder("train"))
    metrics, validation = (read_metrics(model / name) for name in ("metrics.csv", "validation.csv"))
    config = Path(paths.config)
    return environment.get_template("report.html.jinja").render(
        run=run_dir.resolve().name,
        run_path=str(run_dir),
        version=__version__,
        metrics=METRICS,
        resamples=NUM_RESAMPLES,
        volumes=[_volume_context(files, run_dir) for files in volumes],
        charts=training_charts(metrics, validation),
        best_validation=best_validation(validation),
        warnings=warnings_of(run_dir, *volumes),
        costs=read_costs(run_dir),
        selection=read_output(run_dir, "select", "selection"),
        versions=package_versions(),
        config=config.read_text() if config.is_file() else "",
    )


def render_first(run_dir: Path) -> str:
    """Return the HTML of the first look; a warning in it is logged, too."""
    volumes = first_look(run_dir)
    for volume in volumes:
        if volume["verdict"].startswith("Warning: "):
            log.warning("%s: %s", volume["name"], volume["verdict"].removeprefix("Warning: "))
    return _environment().get_template("look.html.jinja").render(run=run_dir.resolve().name, volumes=volumes)


def _environment() -> jinja2.Environment:
    loader = jinja2.FileSystemLoader(TEMPLATES)
    return jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)


def duration(seconds: float) -> str:
    """Return a time for people to read.

    Examples
    --------
    >>> duration(7.31), duration(192), duration(7500)
    ('7.3 s', '3 min 12 s', '2 h 05 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def _volume_context(files: VolumeFiles, run_dir: Path) -> dict[str, Any]:
    """Return everything that the template shows of one volume."""
    rows, verdict = score_rows(files.scores) if files.scores else [], verdict_on(run_dir, files)
    errors = (files.scores or {}).get("errors", [])
    export = Path(RunPaths(run_dir).of("export", volume=files.name)).parent
    sweep = read_output(run_dir, "sweep", volume=files.name) if files.scores else {}
    with open_volumes(files) as volumes:
        return {
            "name": files.name,
            "scores": files.scores,
            "groups": {name: list(group) for name, group in itertools.groupby(rows, lambda row: row.convention)},
            "methods": method_names(files.scores or {}),
            "run_lengths": run_lengths(files.scores or {}),
            "errors": errors,
            "verdict": verdict,
            "worst": [(error, close_up(volumes, error)) for error in verdict.worst if volumes],
            "has_links": (export / LINKS_FOLDER).is_dir(),
            "tables": [str(table.relative_to(run_dir)) for table in sorted(export.glob("*.csv"))],
            "grey_levels": read_output(run_dir, "normalize", volume=files.name),
            "faults": read_faults(files.image) if files.image else [],
            "sweep": sweep_charts(sweep.get("sweep", {})),
            "abstained": sweep.get("abstained", 0),
            "middle": str(volumes.drawn) if volumes and volumes.drawn != volumes.box else "",
            "slices": slices(volumes) if volumes else [],
        }


def package_versions() -> dict[str, str]:
    """Return the versions of Python and of the installed packages that results depend on."""
    versions = {"Python": platform.python_version()}
    for name in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions
