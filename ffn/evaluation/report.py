"""The stage `report`: one self-contained HTML page about a run."""

from __future__ import annotations

import contextlib
import itertools
import logging
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import numpy as np

from ffn import __version__
from ffn.atomic import write_text
from ffn.errors import EvaluationError
from ffn.evaluation import pictures
from ffn.evaluation.charts import Line, line_chart, smoothed
from ffn.evaluation.evaluate import tabulate
from ffn.evaluation.run_folder import VolumeFiles, read_costs, read_metrics, read_volumes
from ffn.evaluation.score_table import COLUMNS, figure, method_names, percent, score_rows
from ffn.geometry import Box
from ffn.volume import CHUNK_ZYX, Volume, open_volume, require_inside

log = logging.getLogger(__name__)

# Dong et al. 2019 (arXiv 1905.06236), table of results; measured by others, on other boxes of FIB-25.
PUBLISHED = (
    ("MALA (Funke et al. 2018)", None, 1.1470),
    ("CELIS-MC (Maitin-Shepard et al. 2016)", None, 1.1208),
    ("FFN (Januszewski et al. 2018)", 0.0973, 3.2085),
    ("FFN, distributed (Dong et al. 2019)", 0.1074, 1.9518),
)
METRICS = {"accuracy": "accuracy", "precision": "precision", "recall": "recall", "f1": "F1"}
TEMPLATES = Path(__file__).parent / "templates"


class Picture(NamedTuple):
    """One picture of a row of slices."""

    title: str
    uri: str


class Chart(NamedTuple):
    """A chart with its legend: pairs of CSS class and name."""

    title: str
    svg: str
    legend: list[tuple[str, str]]


def report(run_dir: str | Path, out: str | Path) -> None:
    """Write the report of a run; what the run does not have is said in a sentence.

    Parameters
    ----------
    run_dir : path
        Folder of the run, laid out as the workflow does.
    out : path
        HTML file; it needs no other file and no network.

    Raises
    ------
    EvaluationError
        If `run_dir` is not the folder of a run, one of its files is damaged, or `out` cannot be written.
    """
    page = render(Path(run_dir))
    try:
        write_text(out, page)
    except OSError as reason:
        raise EvaluationError(f"{out}: cannot be written ({reason}). Choose another --out") from None
    log.info("%s: %.1f MB", out, len(page) / 1e6)


def render(run_dir: Path) -> str:
    """Return the page as text."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(figure=figure, percent=percent, duration=duration)
    volumes = read_volumes(run_dir)
    costs = read_costs(run_dir)
    config = run_dir / "config.yaml"
    return environment.get_template("report.html.jinja").render(
        run=run_dir.resolve().name,
        version=__version__,
        columns=COLUMNS,
        published=PUBLISHED,
        volumes=[_volume_context(files) for files in volumes],
        charts=training_charts(read_metrics(run_dir)),
        costs=costs,
        config=config.read_text() if config.is_file() else "",
        provenance=[entry for files in volumes for entry in _provenance(files)],
    )


def training_charts(metrics: dict[str, list[float]]) -> list[Chart]:
    """Draw the training curves that `metrics` has columns for.

    Parameters
    ----------
    metrics : dict of str to list of float
        Columns of metrics.csv, ``step`` among them.

    Returns
    -------
    list of Chart
        Loss; accuracy, precision, recall and F1, smoothed with factor 0.9 as in the paper.
    """
    step = np.array(metrics.get("step", []))
    columns = {name: np.array(values) for name, values in metrics.items() if np.isfinite(values).any()}
    charts = []
    if len(step) and "loss" in columns:
        loss = columns["loss"]
        lines = [Line("as logged", step, loss, "faint s0"), Line("smoothed", step, smoothed(loss), "s0")]
        charts.append(_chart("Loss", lines, (0.0, None)))
    shown = [name for name in METRICS if name in columns]
    if len(step) and shown:
        curves = [Line(METRICS[n], step, smoothed(columns[n]), f"s{i}") for i, n in enumerate(METRICS) if n in shown]
        faint = [Line("", step, columns[n], "faint s0") for n in shown if n == "accuracy"]
        charts.append(_chart("Accuracy, precision, recall, F1", faint + curves, (0.0, 1.0)))
    return charts


def duration(seconds: float) -> str:
    """Return a time as a person says it.

    Examples
    --------
    >>> duration(7.31), duration(192), duration(7500)
    ('7.3 s', '3 min 12 s', '2 h 05 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def _chart(title: str, lines: list[Line], y_range: tuple[float | None, float | None]) -> Chart:
    legend = [(line.style, line.name) for line in lines if line.name]
    return Chart(title, line_chart(lines, title, "step", y_range), legend)


def _volume_context(files: VolumeFiles) -> dict[str, Any]:
    """Everything that the template shows about one volume."""
    rows = score_rows(files.scores) if files.scores else []
    return {
        "name": files.name,
        "scores": files.scores,
        "groups": {name: list(group) for name, group in itertools.groupby(rows, lambda row: row.convention)},
        "methods": method_names(files.scores or {}),
        "slices": _slices(files) if files.image and files.segmentation else [],
    }


def _slices(files: VolumeFiles) -> list[dict[str, Any]]:
    """Rows of pictures: image, and what there is of truth, segmentation and baseline, in three planes."""
    own, *others = method_names(files.scores or {})
    specs = {"image": files.image, "truth": files.truth, own: files.segmentation}
    specs |= dict.fromkeys(others, files.baseline)
    with contextlib.ExitStack() as stack:
        volumes = {title: stack.enter_context(open_volume(spec)) for title, spec in specs.items() if spec}
        image = volumes.pop("image")
        box = Box.parse(files.scores["box"]) if files.scores else volumes[own].box
        for volume in (image, volumes[own]):
            require_inside(volume, box)
        labels = {title: volume for title, volume in volumes.items() if volume.box.contains(box)}
        color_ids = {title: _color_ids(volume, labels, box) for title, volume in labels.items()}
        size_zyx_nm = image.voxel_size_zyx_nm or (1.0, 1.0, 1.0)
        planes = pictures.planes(box, size_zyx_nm)
        return [
            {
                "plane": plane,
                "extent": _extent(plane, size_zyx_nm),
                "pictures": _row(plane, image, labels, color_ids),
            }
            for plane in planes
        ]


def _color_ids(volume: Volume, labels: dict[str, Volume], box: Box) -> dict[int, int]:
    """Ids of the truth bodies whose colours the segments of `volume` take."""
    if "truth" not in labels or volume is labels["truth"]:
        return {}
    return pictures.best_bodies(tabulate(labels["truth"].read, volume.read, box, CHUNK_ZYX))


def _row(
    plane: pictures.Plane, image: Volume, labels: dict[str, Volume], color_ids: dict[str, dict[int, int]]
) -> list[Picture]:
    base = pictures.gray(image.read(plane.box).squeeze(plane.axis), plane.size_pixels)
    row = [Picture("image", pictures.data_uri(base))]
    for title, volume in labels.items():
        ids = volume.read(plane.box).squeeze(plane.axis)
        row.append(Picture(title, pictures.data_uri(pictures.overlay(base, ids, color_ids[title]))))
    return row


def _extent(plane: pictures.Plane, voxel_size_zyx_nm: tuple[float, float, float]) -> str:
    """Width and height in micrometres, and where the slice lies."""
    lengths = [n * size / 1000 for n, size in zip(plane.box.shape, voxel_size_zyx_nm, strict=True)]
    height, width = (length for axis, length in enumerate(lengths) if axis != plane.axis)
    return f"{width:.3g} × {height:.3g} µm at {'zyx'[plane.axis]} = {plane.box.start[plane.axis]}"


def _provenance(files: VolumeFiles) -> list[dict[str, Any]]:
    """Say for each file of a volume what made it."""
    entries = []
    for spec in (files.image, files.truth, files.segmentation):
        if spec:
            with open_volume(spec) as volume:
                entries.append({"file": spec, **volume.provenance})
    if files.scores:
        entries.append({"file": f"evaluation/{files.name}.json", **files.scores.get("provenance", {})})
    return entries
