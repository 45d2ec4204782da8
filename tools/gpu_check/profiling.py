"""Bursts of 8 canvases under the lens: their optimised HLO, a trace, and the kernels that take longest."""

from __future__ import annotations

import gzip
import json
import re
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from .common import OUT, TINY, Report
from .network import FORMS, bursting

BATCH, SIDE = (2, 40) if TINY else (8, 250)
NUM_FOVS = 4  # of an object in a burst
LAUNCHED = r"= (?:\([^)]*\)|\S+) (fusion|custom-call|convolution|dot|copy|scatter|gather|while|conditional|call)\("


def profile(report: Report) -> None:
    """Report operations, the time of a burst, and kernels; write hlo.txt.gz and trace.json.gz."""
    import jax

    burst = bursting(BATCH, FORMS[0], SIDE, NUM_FOVS)
    arguments = (burst.weights, burst.seen, burst.scenes, burst.growing, burst.requests)
    program: Any = burst.call.lower(*arguments).compile()  # type: ignore[attr-defined]
    report.add(**operations(program.as_text()), temp_mb=round(program.memory_analysis().temp_size_in_bytes / 1e6, 1))
    burst, growing, times, fovs = burst._replace(call=program), burst.growing, [], 0
    for _ in range(13):
        start = time.perf_counter()
        growing, answers = burst.run(growing)
        times.append(time.perf_counter() - start)
        fovs = int(answers[:, 0].sum())
    seconds = float(np.median(times[3:]))
    row = {"burst_of": BATCH, "fovs": fovs, "ms": round(seconds * 1e3, 3)}
    report.add(**row, ms_of_step=round(seconds * 1e3 / NUM_FOVS, 3), fovs_per_s=round(fovs / seconds, 1))
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            burst.run(growing)
        for found in Path(folder).rglob("*.trace.json.gz"):
            report.add(**longest_kernels(found))


def operations(hlo: str) -> dict[str, Any]:
    """Count what the compiled burst consists of; copies of whole canvases would be too slow."""
    with gzip.open(OUT / "hlo.txt.gz", "wt") as file:
        file.write(hlo)
    canvases = rf"= f32\[{BATCH},{SIDE},{SIDE},{SIDE}\]\S* (?:copy|transpose)\("
    return {
        "operations": dict(Counter(re.findall(LAUNCHED, hlo)).most_common()),
        "targets": dict(Counter(re.findall(r'custom_call_target="([^"]+)"', hlo))),
        "layouts": dict(Counter(re.findall(r"dim_labels=(\S+?)[,\s]", hlo))),
        "canvas_copies": len(re.findall(canvases, hlo)),
    }


def longest_kernels(trace: Path) -> dict[str, Any]:
    """Add up the time of each kernel in a trace of JAX, and keep the trace."""
    content = gzip.decompress(trace.read_bytes())
    (OUT / "trace.json.gz").write_bytes(gzip.compress(content))
    events = json.loads(content)["traceEvents"]
    processes = {event["pid"]: event["args"]["name"] for event in events if event.get("name") == "process_name"}
    spent: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    for event in events:
        if event.get("ph") == "X" and (TINY or "GPU" in processes.get(event["pid"], "")):
            spent[event["name"]] += event["dur"]
            calls[event["name"]] += 1
    longest = [[name[:90], round(us), calls[name]] for name, us in spent.most_common(20)]
    return {"traced_steps": NUM_FOVS, "us": round(spent.total()), "calls": calls.total(), "longest": longest}
