"""Whatever a user's files are called, every command of the workflow gets exactly these paths."""

import argparse
import importlib
import random
import re
import subprocess
from collections import defaultdict

import h5py
import numpy as np
import pytest
import yaml

from ffn.cli import COMMANDS, Parser

from ..small_run import SMALL_RUN, Workflow

SHAPE = (64, 56, 72)
CHARACTERS = " \t'\"`$;&|()[]*?!#~\\%=,:@-+.üß²日"
NASTY = ["-a", "@a", "--out", " a b'\"$HOME$(false);²ü日"]
CALLS = 'ffn() { printf "%s\\0" "$@" >&3; printf "\\n\\0" >&3; }\n'


def generated(number: int) -> list[str]:
    """Names of random characters, always the same."""
    rng = random.Random(7)
    return ["".join(rng.choices(CHARACTERS, k=8)) for _ in range(number)]


def write_sources(folder, names: list[str]) -> dict:
    """Write volumes with everything that a user may give, in files with these names, and configure a run with them."""
    for name in names:
        with h5py.File(folder / f"{name}.h5", "w") as file:
            file["raw"] = np.zeros(SHAPE, np.uint8)
            file["labels"] = np.ones(SHAPE, np.uint64)
        (folder / f"{name}-skeletons").mkdir()
        (folder / f"{name}-skeletons" / "1.swc").write_text("1 0 10 10 10 1 -1\n2 0 10 10 90 1 1\n")
    (folder / f"{names[0]}.csv").write_text("z,y,x\n1,2,3\n")
    (folder / f"{names[0]}-model").mkdir()
    (folder / f"{names[0]}-model" / "model.yaml").write_text(yaml.safe_dump({"model": SMALL_RUN["model"]}))
    boxes = {"train_box": "0:40,0:56,0:72", "evaluate_box": "40:64,0:56,0:72"}
    volumes = {
        f"a-{number}_B": {
            **{"image": f"{name}.h5:raw", "labels": f"{name}.h5:labels", "skeletons": f"{name}-skeletons"},
            **{"voxel_size_zyx_nm": [10, 10, 10], "masks": [{"path": f"{name}.h5:labels"}], **boxes},
        }
        for number, name in enumerate(names)
    }
    segment = {"seed_points": f"{names[0]}.csv"}
    return {**SMALL_RUN, "volumes": volumes, "segment": segment, "init": f"{names[0]}-model"}


def calls(output: str) -> dict[str, list[argparse.Namespace]]:
    """Shell lines of a dry run, taken apart by the shell and by the parsers of the commands; all of each command."""
    lines = re.findall(r"^Shell command: (.*?) > \S+ 2>&1$", output, re.MULTILINE)
    script = CALLS + "\n".join(lines)
    done = subprocess.run(["bash", "-c", f"exec 3>&1; {script}"], capture_output=True, check=True)
    parsed = defaultdict(list)
    for call in done.stdout.decode().split("\0\n\0")[:-1]:
        words = call.split("\0")
        words = words[words.index("--") + 2 :] if words[0] == "launch" else words
        parser = Parser()  # without fromfile_prefix_chars: the lists are not written
        importlib.import_module(COMMANDS[words[0]].module).add_arguments(parser)
        parsed[words[0]].append(parser.parse_args(words[1:]))
    return parsed


NAMES = [*NASTY, *generated(10)]


@pytest.mark.parametrize("names", [NAMES[first::4] for first in range(4)], ids=range(4))
def test_commands_get_the_paths_of_the_configuration(names, tmp_path):
    config = write_sources(tmp_path, names)
    workflow = Workflow(tmp_path, config)
    found = calls(workflow.plan("-p"))
    given = [f"./{name}" if name.startswith(("-", "@")) else name for name in names]
    files = [f"{name}.h5:{kind}" for name in given for kind in ("raw", "labels")]
    assert sorted(call.source for call in found["ingest"]) == sorted([file] for file in files)
    masked = {(f"{name}.h5:labels",) for name in given}
    for command in ("coordinates", "normalize", "segment", "agglomerate", "fill", "evaluate", "sweep", "skeletonize"):
        assert {tuple(call.masks) for call in found[command]} == masked or not found[command]
    assert {call.skeletons for call in found["evaluate"]} == {f"{name}-skeletons" for name in given}
    assert {call.seed_points for call in found["segment"]} == {f"{given[0]}.csv"}
    (training,) = found["train"]
    assert training.masks == [f"a-{number}_B={name}.h5:labels" for number, name in enumerate(given)]
    assert training.init == f"{given[0]}-model"
    workflow.configure({**config, "train": {**SMALL_RUN["train"], "max_steps": 0}})
    assert {call.model for call in calls(workflow.plan("-p", "merge_all"))["agglomerate"]} == {f"{given[0]}-model"}
