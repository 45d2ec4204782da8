"""The figure of the study of scaling."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ffn.studies.pages import COLOURS, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STYLES = ("-", "--", ":", "-.", (0, (5, 1)), (0, (1, 1)))


def draw_scaling(content: dict[str, Any]) -> Figure:
    """Draw throughput, efficiency and what-ifs over the number of nodes.

    Parameters
    ----------
    content : dict
        The numbers of the study, as in its JSON file.
    """
    figure, panels = new_figure(3)
    _draw_throughput(panels[0], content)
    _draw_efficiency(panels[1], content)
    _draw_what_ifs(panels[2], content)
    for panel in panels:
        panel.set_xscale("log", base=2)
        panel.set_xticks(ticks := content["nodes"][::2], [str(n) for n in ticks])
        panel.set_xlabel("nodes")
        panel.legend(fontsize=7)
    return figure


def _draw_throughput(panel: Any, content: dict[str, Any]) -> None:
    nodes, paper = np.array(content["nodes"]), content["paper"]
    model, knl = content["here"]["fovs_per_second"], paper["model"]["fovs_per_second"]
    panel.plot(nodes, nodes * model[0], ":", color=COLOURS[7], label="ideal")
    panel.plot(nodes, nodes * knl[0], ":", color=COLOURS[7])
    panel.plot(nodes, model, color=COLOURS[0], label=f"model, {content['network']['name']}")
    panel.plot(nodes, knl, color=COLOURS[1], label="model, paper's nodes")
    rows = content["measured"]
    panel.plot(
        [r["processes"] for r in rows],
        [r["fovs_per_second"] for r in rows],
        "o",
        color=COLOURS[0],
        label="measured here",
    )
    published = {int(n): value for n, value in paper["fovs_per_second"].items()}
    panel.plot(list(published), list(published.values()), "s", color=COLOURS[1], label="paper")
    panel.set(yscale="log", ylabel="FOVs/s")


def _draw_efficiency(panel: Any, content: dict[str, Any]) -> None:
    nodes, paper = content["nodes"], content["paper"]
    panel.plot(nodes, content["here"]["efficiency"], color=COLOURS[0], label=f"model, {content['network']['name']}")
    panel.plot(nodes, paper["model"]["efficiency"], color=COLOURS[1], label="model, paper's nodes")
    measured = {row["processes"]: row["efficiency"] for row in content["measured"]}
    panel.plot(list(measured), list(measured.values()), "o", color=COLOURS[0], label="measured here")
    published = {int(n): value for n, value in paper["efficiency"].items()}
    panel.plot(list(published), list(published.values()), "s", color=COLOURS[1], label="paper")
    panel.set(ylabel="efficiency", ylim=(0, 1.1))


def _draw_what_ifs(panel: Any, content: dict[str, Any]) -> None:
    base = np.array(content["here"]["efficiency"])
    panel.plot(content["nodes"], base, color="black", label="as modelled")
    for colour, style, (name, values) in zip(COLOURS, STYLES, content["what_if"].items(), strict=False):
        panel.plot(content["nodes"], values, linestyle=style, color=colour, label=name)
    panel.set(ylabel="efficiency, what if", ylim=(0, 1.1))
