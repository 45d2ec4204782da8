"""The best learning rate for each number of workers (Fig. 4 of Dong et al. 2019)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ffn.errors import EvaluationError
from ffn.provenance import provenance
from ffn.studies.config import RatesConfig
from ffn.studies.optima import Optimum, find_optimum, fit_power_law
from ffn.studies.pages import COLOURS, new_figure, write_study
from ffn.studies.runs import Run, read_runs

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NAMES = {"accuracy": "Accuracy", "f1": "F1"}
EXPONENTS = {"linear": 1.0, "square root": 0.5}


def study_learning_rate(metrics: list[str], out_path: str, config: RatesConfig, rng_seed: int) -> None:
    """Compare training runs over a grid of numbers of workers and learning rates.

    Parameters
    ----------
    metrics : list of str
        Files ``workers-W-rate-R-seed-S.csv``, see `read_runs`; a run that ends early has diverged.
    out_path : str
        JSON file; a PNG and an HTML file get the same name.
    config : RatesConfig
        Options of the studies.
    rng_seed : int
        For the resampling that gives the uncertainties.

    Raises
    ------
    EvaluationError
        If a point of the grid is missing, or all runs with one number of workers diverged.
    """
    runs = read_runs(metrics, config.smoothing)
    results = {name: _result(runs, name, config, rng_seed) for name in NAMES}
    best = dict(zip(config.workers, (o["best_tried"] for o in results[config.score]["optima"]), strict=True))
    content = {
        "provenance": provenance("study learning-rate", config, rng_seed=rng_seed),
        "workers": config.workers,
        "learning_rates": config.learning_rates,
        "step": config.steps,
        "best_rates": {str(workers): rate for workers, rate in best.items()},
        **results,
    }
    statements = [_statement(name, results[name], config) for name in NAMES]
    write_study(out_path, "Learning rate and number of workers", content, _figure(results, config), statements)


def best_rates(study_path: str) -> dict[int, float]:
    """Return the best tried rate by number of workers, from a study's output.

    Raises
    ------
    EvaluationError
        If the file is not a study of the learning rate.
    """
    try:
        rates = json.loads(Path(study_path).read_text())["best_rates"]
        return {int(workers): float(rate) for workers, rate in rates.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as reason:
        raise EvaluationError(
            f"{study_path}: has no best rates ({reason}), expected output of 'ffn study learning-rate'"
        ) from None


def best_rate(study_path: str, workers: int) -> float:
    """Return the best tried rate for a number of workers, from a study's output.

    Raises
    ------
    EvaluationError
        If the file is not a study of the learning rate, or lacks this number of workers.
    """
    rates = best_rates(study_path)
    if workers not in rates:
        raise EvaluationError(f"--workers: found {workers}, expected one of those in {study_path}: {sorted(rates)}")
    return rates[workers]


def score_grid(runs: list[Run], name: str, config: RatesConfig) -> tuple[np.ndarray, np.ndarray]:
    """Return the score of every point of the grid, and the noise for every number of workers.

    Returns
    -------
    scores : float64 ndarray of shape (workers, rates)
        Mean over seeds of the smoothed score at the last step; NaN where any run diverged.
    noise : float64 ndarray of shape (workers,)
        Standard deviation of such a mean: the larger of two estimates, from the scatter of rows within runs and, with
        several seeds, between runs. Each is the median over rates.

    Raises
    ------
    EvaluationError
        If a run is missing.
    """
    scores = np.full((len(config.workers), len(config.learning_rates)), np.nan)
    within, between = np.full_like(scores, np.nan), np.zeros_like(scores)
    for i, workers in enumerate(config.workers):
        for j, rate in enumerate(config.learning_rates):
            here = [run for run in runs if (run.workers, run.rate) == (workers, rate)]
            if not here:
                raise EvaluationError(
                    f"study: no run of {workers} workers at rate {rate:g}, expected one for every point of the grid"
                )
            values = np.array([run.at(name, config.steps) for run in here])
            scores[i, j] = values.mean()
            within[i, j] = np.mean([run.noise(name, config.smoothing) for run in here]) / np.sqrt(len(here))
            if len(here) > 1:
                between[i, j] = values.std(ddof=1) / np.sqrt(len(here))
    with np.errstate(all="ignore"):
        noise = np.fmax(_median(within), _median(between))
    return scores, noise


def _median(values: np.ndarray) -> np.ndarray:
    """Return the median of every row's finite values, 0 if it has none."""
    return np.array([np.median(row[np.isfinite(row)]) if np.isfinite(row).any() else 0.0 for row in values])


def _result(runs: list[Run], name: str, config: RatesConfig, rng_seed: int) -> dict[str, Any]:
    """Return scores, optima and power law for one kind of score, ready for JSON."""
    scores, noise = score_grid(runs, name, config)
    rng, rates = np.random.default_rng(rng_seed), np.array(config.learning_rates)
    optima: list[Optimum] = []
    for workers, row, deviation in zip(config.workers, scores, noise, strict=True):
        if not np.isfinite(row).any():
            raise EvaluationError(
                f"study.learning_rates: training with {workers} workers diverged at all of {config.learning_rates}, "
                "expected one rate at which it does not. Add lower rates"
            )
        optima.append(find_optimum(rates, row, float(deviation), rng))
    law = fit_power_law(np.array(config.workers), optima)
    return {
        "scores": [[None if np.isnan(value) else float(value) for value in row] for row in scores],
        "noise": noise.tolist(),
        "optima": [optimum._asdict() for optimum in optima],
        "power_law": None if law is None else law._asdict() | {"text": law.text},
    }


def _statement(name: str, result: dict[str, Any], config: RatesConfig) -> str:
    optima = ", ".join(f"{o['rate']:.1g} with {w}" for w, o in zip(config.workers, result["optima"], strict=True))
    edge = [str(w) for w, o in zip(config.workers, result["optima"], strict=True) if o["at_edge"]]
    text = f"{NAMES[name]} after {config.steps} steps is highest at rates near {optima} workers. "
    if edge:
        text += f"With {', '.join(edge)} the best rate is the lowest or highest one tried, which is only a bound. "
    law = result["power_law"]
    if law is None:
        return text + "Fewer than three optima lie inside the tried rates, so there is no exponent."
    text += f"The optimum grows as workers^({law['text']}), from {law['num_optima']} optima. "
    agreeing = [rule for rule, p in EXPONENTS.items() if abs(law["exponent"] - p) < 2 * law["stddev"]]
    if len(agreeing) == 1:
        return f"{text}Within two standard deviations this agrees with the {agreeing[0]} rule only."
    rules = " nor the ".join(EXPONENTS)
    return text + (
        "This is too uncertain to tell the linear rule from the square root rule."
        if agreeing
        else f"This agrees with neither the {rules} rule, within two standard deviations."
    )


def _figure(results: dict[str, Any], config: RatesConfig) -> Any:
    """Draw normalised scores over workers and rates, with the optima and the scaling rules."""
    figure, panels = new_figure(len(results))
    for panel, (name, result) in zip(panels, results.items(), strict=True):
        _draw(panel, NAMES[name], result, config)
    handles = {
        label: handle for panel in panels for handle, label in zip(*panel.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles, loc="outside lower center", ncols=len(handles), fontsize=8)
    return figure


def _draw(panel: Axes, title: str, result: dict[str, Any], config: RatesConfig) -> None:
    scores = np.array(result["scores"], np.float64)
    highest = np.nanmax(scores, axis=1, keepdims=True)
    shown = scores / np.where(highest > 0, highest, 1.0)
    workers, rates = np.array(config.workers), np.array(config.learning_rates)
    diverged = np.argwhere(np.isnan(shown))
    if len(diverged):
        panel.plot(workers[diverged[:, 0]], rates[diverged[:, 1]], "x", color="black", label="diverged")
    mesh = panel.pcolormesh(_edges(workers), _edges(rates), shown.T, cmap="Greys_r", vmin=np.nanmin(shown), vmax=1.0)
    panel.figure.colorbar(mesh, ax=panel, label="relative to best of column")
    optimum = np.array([o["rate"] for o in result["optima"]])
    factor = np.exp([o["log_stddev"] for o in result["optima"]])
    error = [optimum - optimum / factor, optimum * factor - optimum]
    panel.errorbar(workers, optimum, error, fmt="o", color=COLOURS[1], capsize=3, label="optimum")
    title, law = f"{title}, step {config.steps}", result["power_law"]
    start = optimum[0] if law is None else law["rate"] * workers[0] ** law["exponent"]
    for colour, style, (rule, exponent) in zip(COLOURS[4:], ("--", ":"), EXPONENTS.items(), strict=False):
        panel.plot(workers, start * (workers / workers[0]) ** exponent, style, color=colour, label=rule)
    if law is not None:
        panel.plot(workers, law["rate"] * workers ** law["exponent"], color=COLOURS[0], label="fitted power")
        title += f": workers^({law['text']})"
    panel.set(xscale="log", yscale="log", xlabel="workers", ylabel="learning rate")
    panel.set_title(title, fontsize="medium")
    panel.set_xticks(workers, [str(n) for n in workers])
    panel.set_yticks(rates, [f"{rate:.3g}" for rate in rates])
    panel.minorticks_off()
    panel.set_ylim(_edges(rates)[0], _edges(rates)[-1])


def _edges(values: np.ndarray) -> np.ndarray:
    """Return the borders of cells around values on a logarithmic axis."""
    logs = np.log(values)
    if len(logs) == 1:
        return np.exp([logs[0] - 0.35, logs[0] + 0.35])
    middles = (logs[1:] + logs[:-1]) / 2
    return np.exp(np.concatenate([[2 * logs[0] - middles[0]], middles, [2 * logs[-1] - middles[-1]]]))
