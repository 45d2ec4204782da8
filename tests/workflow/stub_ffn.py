"""A stand-in for `ffn` that only writes the outputs named on its command line, to finish a run in seconds."""

import sys
from pathlib import Path

FOLDERS = {
    "import-checkpoint": ("model.yaml", "weights.h5"),
    "records": ("index.json",),
    "train": ("model.yaml", "weights.h5"),
    "select": ("model.yaml", "weights.h5", "selection.json"),
    "export": ("neuroglancer.json",),
}
OPTIONS = ("--out", "--out-image", "--out-labels", "--mapping", "--groups", "--baseline-out")


def outputs(words: list[str]) -> list[Path]:
    """Return the files that a command line asks for."""
    if words[0] == "launch":
        words = words[words.index("--") + 2 :]
    command, kind = words[:2]
    given = dict(zip(words, words[1:], strict=False))
    if "--job-record" in given:
        return [Path(given["--job-record"])]
    if given.get("--step", "write") != "write":
        out = f"{given['--out']}/{FOLDERS[command][0]}" if command in FOLDERS else given["--out"]
        return [Path(f"{out}.jobs", given["--step"], "tables.json")]
    named = [Path(words[i + 1].partition(":")[0]) for i, word in enumerate(words) if word in OPTIONS]
    if command in FOLDERS:
        return [named[-1] / name for name in FOLDERS[command]]
    if command == "evaluate":
        named += [named[-1].with_name(f"{named[-1].stem}-{table}.csv") for table in ("bodies", "errors")]
    if command == "study" and kind not in ("train", "measure"):
        named.append(named[-1].with_suffix(".png"))
    return named


if __name__ == "__main__":
    for path in outputs(sys.argv[1:]):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("stub\n")
