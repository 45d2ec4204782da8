"""Whatever a user's files are called, every command of the workflow gets exactly these paths."""

import argparse
import importlib
import random
import re
import subprocess

import h5py
import numpy as np
import pytest
import yaml

from ffn.cli import COMMANDS, Parser, main

from ..small_run import SMALL_RUN, Workflow

SHAPE = (64, 56, 72)
CHARACTERS = " \t'\"`$;&|()[]*?!#~\\%=,:@-+.üß²日"
NASTY = ["-a", "@a", "--out", " a b'\"$HOME$(false);²ü日"]
CALLS = 'ffn() { printf "%s\\0" "$@" >&3; printf "\\n\\0" >&3; }\n'


def generated(number: int) -> list[str]:
    """Names of random characters, always the same."""
    rng = random.Random(7)
    return ["".join(rng.choices(CHARACTERS, k=8)) for _ in range(number)]


def write_sources(folder, name: str) -> dict:
    """Write a volume with everything that a user may give, in files with this name, and configure a run with them."""
    with h5py.File(folder / f"{name}.h5", "w") as file:
        file["raw"] = np.zeros(SHAPE, np.uint8)
        file["labels"] = np.ones(SHAPE, np.uint64)
    (folder / f"{name}.csv").write_text("z,y,x\n1,2,3\n")
    (folder / f"{name}-skeletons").mkdir()
    (folder / f"{name}-skeletons" / "1.swc").write_text("1 0 10 10 10 1 -1\n2 0 10 10 90 1 1\n")
    (folder / f"{name}-model").mkdir()
    (folder / f"{name}-model" / "model.yaml").write_text(yaml.safe_dump({"model": SMALL_RUN["model"]}))
    volume = {
        **{"image": f"{name}.h5:raw", "labels": f"{name}.h5:labels", "skeletons": f"{name}-skeletons"},
        **{"voxel_size_zyx_nm": [10, 10, 10], "train_box": "0:40,0:56,0:72", "evaluate_box": "40:64,0:56,0:72"},
        "masks": [{"path": f"{name}.h5:labels"}],
    }
    segment = {"seed_policy": "points", "seed_points": f"{name}.csv"}
    return {**SMALL_RUN, "volumes": {"a-1_B": volume}, "segment": segment, "init": f"{name}-model"}


def calls(output: str) -> dict[str, argparse.Namespace]:
    """Shell lines of a dry run, taken apart by the shell and by the parsers of the commands; the last of each rule."""
    lines = re.findall(r"^Shell command: (.*?) > \S+ 2>&1$", output, re.MULTILINE)
    script = CALLS + "\n".join(lines)
    done = subprocess.run(["bash", "-c", f"exec 3>&1; {script}"], capture_output=True, check=True)
    parsed = {}
    for call in done.stdout.decode().split("\0\n\0")[:-1]:
        words = call.split("\0")
        words = words[words.index("--") + 2 :] if words[0] == "launch" else words
        parser = Parser()  # without fromfile_prefix_chars: the lists are not written
        importlib.import_module(COMMANDS[words[0]].module).add_arguments(parser)
        parsed[words[0]] = parser.parse_args(words[1:])
    return parsed


@pytest.mark.parametrize("name", [*NASTY, *generated(3)])
def test_commands_get_the_paths_of_the_configuration(name, tmp_path):
    config = write_sources(tmp_path, name)
    workflow = Workflow(tmp_path, config)
    found = calls(workflow.plan("-p"))
    given = f"./{name}" if name.startswith(("-", "@")) else name
    assert found["ingest"].source in ([f"{given}.h5:raw"], [f"{given}.h5:labels"])
    assert found["train"].init == f"{given}-model"
    assert found["segment"].seed_points == f"{given}.csv"
    for command in ("coordinates", "normalize", "segment", "agglomerate", "fill", "evaluate", "sweep", "skeletonize"):
        if command in found:
            assert found[command].masks == [f"{given}.h5:labels"]
    assert found["train"].masks == [f"a-1_B={given}.h5:labels"]
    assert found["evaluate"].skeletons == f"{given}-skeletons"
    trained = {**config, "train": {**SMALL_RUN["train"], "max_steps": 0}}
    workflow.configure(trained)
    assert calls(workflow.plan("-p", "merge_all"))["agglomerate"].model == f"{given}-model"


@pytest.mark.slow
def test_a_run_on_such_files_is_complete_and_watches_them(tmp_path):
    name = "-a 'ü'$HOME;"
    folder = tmp_path / name
    folder.mkdir()
    shape = map(str, SHAPE)
    main(["synth", "--shape", *shape, "--out-image", f"{folder}/raw.zarr", "--out-labels", f"{folder}/{name}.zarr"])
    with h5py.File(folder / "mask.h5", "w") as file:
        file["mask"] = np.zeros(SHAPE, np.uint8)
    phantom = {key: box for key, box in SMALL_RUN["volumes"]["phantom"].items() if key != "synthetic"}
    volume = {**phantom, "image": f"{name}/raw.zarr", "labels": f"{name}/{name}.zarr"}
    volume["masks"] = [{"path": f"{name}/mask.h5:mask"}]
    config = {
        **{**SMALL_RUN, "volumes": {"0-a_B": volume}},
        "train": {**SMALL_RUN["train"], "num_workers": 1, "max_steps": 20},
    }
    workflow = Workflow(tmp_path, config)
    workflow.succeed()
    assert "Nothing to be" in workflow.plan()
    with h5py.File(folder / "mask.h5", "w") as file:
        file["mask"] = np.zeros(SHAPE, np.uint16)
    assert "rule segment:" in workflow.plan()
    names = (workflow.results / "lists").glob("segment-0-a_B-*.txt")
    files = workflow.results.glob("segmentation/0-a_B/subvolumes/*.zarr")
    assert next(names).read_text().split() == sorted(str(file.relative_to(tmp_path)) for file in files)
