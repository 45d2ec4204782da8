"""One step of 8 canvases under the lens: its optimised HLO, a trace, and the kernels that take longest."""

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
from .network import FORMS, stepping

BATCH, SIDE = (2, 40) if TINY else (8, 250)
TRACED_STEPS = 4


def profile(report: Report) -> None:
    """Report operations, the time of a step, and kernels; write hlo.txt.gz and trace.json.gz."""
    import jax

    step = stepping(BATCH, FORMS[0], SIDE)
    program: Any = step.call.lower(step.weights, step.seen, step.state, step.requests).compile()  # type: ignore[attr-defined]
    report.add(**operations(program.as_text()), temp_mb=round(program.memory_analysis().temp_size_in_bytes / 1e6, 1))
    step, state, times = step._replace(call=program), step.state, []
    for _ in range(23):
        start = time.perf_counter()
        state, _ = step.run(state)
        times.append(time.perf_counter() - start)
    seconds = float(np.median(times[3:]))
    report.add(step_of=BATCH, ms=round(seconds * 1e3, 3), fovs_per_s=round(BATCH / seconds, 1))
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            for _ in range(TRACED_STEPS):
                state, _ = step.run(state)
        for found in Path(folder).rglob("*.trace.json.gz"):
            report.add(**longest_kernels(found))


def operations(hlo: str) -> dict[str, Any]:
    """Count what the compiled step consists of; copies of whole canvases would be too slow."""
    with gzip.open(OUT / "hlo.txt.gz", "wt") as file:
        file.write(hlo)
    kinds = Counter(re.findall(r"= (?:\([^)]*\)|\S+) ([\w\-]+)\(", hlo[hlo.index("ENTRY") :]))
    canvases = rf"= f32\[{BATCH},{SIDE},{SIDE},{SIDE}\]\S* (?:copy|transpose)\("
    return {
        "operations": dict(kinds.most_common(25)),
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
    return {"traced_steps": TRACED_STEPS, "us": round(spent.total()), "calls": calls.total(), "longest": longest}
