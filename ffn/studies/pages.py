"""The output of a study: numbers as JSON, a figure as PNG, and an HTML page with the figure and some sentences."""

from __future__ import annotations

import io
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ffn.io import atomic

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999999")  # Okabe & Ito 2008
DPI = 150

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<style>body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem }}
svg {{ max-width: 100%; height: auto }}</style></head>
<body><h1>{title}</h1>{figure}
{paragraphs}
</body></html>
"""


def new_figure(num_columns: int, num_rows: int = 1) -> tuple[Figure, list[Any]]:
    """Return a figure with panels in rows and columns, and their axes, row by row."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.9 * num_columns, 3.3 * num_rows), layout="constrained")
    axes = [figure.add_subplot(num_rows, num_columns, i + 1) for i in range(num_columns * num_rows)]
    for panel in axes:
        panel.spines[["top", "right"]].set_visible(False)
    return figure, axes


def write_study(out_path: str, title: str, content: dict[str, Any], figure: Figure, statements: list[str]) -> None:
    """Write a study.

    Parameters
    ----------
    out_path : str
        JSON file; the figure and the page get the same name with ``.png`` and ``.html``.
    title : str
        Title of the page.
    content : dict
        The numbers, ready for JSON; `statements` are added.
    figure : Figure
        The figure.
    statements : list of str
        What the study found, one paragraph each.
    """
    path = Path(out_path)
    with atomic.atomic_path(path.with_suffix(".png")) as temporary:
        figure.savefig(temporary, dpi=DPI, metadata={"Software": None})
    paragraphs = "\n".join(f"<p>{escape(statement)}</p>" for statement in statements)
    page = PAGE.format(title=escape(title), figure=_svg(figure), paragraphs=paragraphs)
    atomic.write_text(path.with_suffix(".html"), page)
    atomic.write_json(path, {**content, "statements": statements})


def _svg(figure: Figure) -> str:
    """Return a figure as an SVG element; equal figures give equal text."""
    import matplotlib

    text = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "study", "svg.fonttype": "none"}):
        figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()[text.getvalue().index("<svg") :]
