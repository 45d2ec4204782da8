"""What the files of a run were made with, and where its configuration says something else by now."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator
from pathlib import Path
from textwrap import shorten
from typing import Any, NamedTuple

from ffn.io.provenance import Provenance, read_provenance
from ffn.io.store_names import without_metadata
from ffn.report.run_folder import configured_pipeline, sample
from ffn.workflow.paths import RunPaths, finished
from ffn.workflow.pipeline import Pipeline
from ffn.workflow.recorded import VOLUMES, Product, Recipe, configured_recipe, is_left_open, recorded_recipe
from ffn.workflow.stages import STAGES, Output

SHOWN_LETTERS = 300  # of an input; an export of a large volume has thousands of files


class Difference(NamedTuple):
    """An option or input that a file was not made with.

    Parameters
    ----------
    key : str
        Its key in config.yaml, such as ``train.max_steps``, or the name of an input.
    made, configured : value
        What the file records, and what config.yaml says.
    """

    key: str
    made: Any
    configured: Any

    def __str__(self) -> str:
        """Return the difference in words."""
        return f"{self.key}: made with {_text(self.made)}; config.yaml says {_text(self.configured)}"


class MadeAlike(NamedTuple):
    """Files of one stage that were made in the same way.

    Parameters
    ----------
    stage : str
        Its name.
    files : list of str
        Paths below the run's folder, sorted.
    num_files : int
        Number of files of this kind that were looked at, those that were made in other ways included.
    num_named : int
        Number of files of this kind that there are, see `read_made_with`.
    made_by : str
        Version of ffn, and what ran the network.
    is_wanted : bool
        Whether the configuration still makes these files.
    differences : list of Difference
        What the configuration says differently.
    record : dict
        Provenance of the first of the files.
    """

    stage: str
    files: list[str]
    num_files: int
    num_named: int
    made_by: str
    is_wanted: bool
    differences: list[Difference]
    record: Provenance

    @property
    def is_as_configured(self) -> bool:
        """Whether the configuration would make the same files."""
        return self.is_wanted and not self.differences

    @property
    def named_files(self) -> str:
        """The files in words: the only one, or how many there are and the first of them."""
        if self.num_named == 1:
            return self.files[0]
        share = f" of {self.num_files}" if len(self.files) < self.num_files else ""
        looked_at = f" looked at of {self.num_named}" if self.is_sample else ""
        return f"{len(self.files)}{share} files{looked_at}: {self.files[0]}{', …' if len(self.files) > 1 else ''}"

    @property
    def is_sample(self) -> bool:
        """Whether there are more files of this kind than were looked at."""
        return self.num_files < self.num_named

    @property
    def statements(self) -> list[str]:
        """What differs, in words."""
        return list(map(str, self.differences)) if self.is_wanted else ["config.yaml makes no such file any more"]

    @property
    def shown_record(self) -> Provenance:
        """Options and inputs of the first of the files; long lists of inputs are cut."""
        parts = {name: self.record.get(name, {}) for name in ("config", "model", "inputs")}
        parts["inputs"] = {name: shorten(str(value), SHOWN_LETTERS) for name, value in parts["inputs"].items()}
        return {name: part for name, part in parts.items() if part}


def outdated(made: list[MadeAlike]) -> str:
    """Return how many files were made in another way than the configuration says, in words; empty if there are none."""
    counts = [(len(one.files), one.is_as_configured) for one in made]
    num_others = sum(count for count, is_as_configured in counts if not is_as_configured)
    if not num_others:
        return ""
    verb = "was" if num_others == 1 else "were"
    verb = f"looked at {verb}" if any(one.is_sample for one in made) else verb
    return f"{num_others} of {sum(count for count, _ in counts)} files {verb} not made as config.yaml says"


def read_made_with(run_dir: Path) -> list[MadeAlike]:
    """Compare the files that have provenance with the configuration of the run: of each folder those of `sample`.

    Parameters
    ----------
    run_dir : Path
        Folder of the run. Without config.yaml, nothing differs.

    Returns
    -------
    list of MadeAlike
        In the order of the pipeline.

    Raises
    ------
    FfnError
        If a file or the configuration is damaged.
    """
    paths = RunPaths(run_dir)
    pipeline = configured_pipeline(paths)
    kinds: dict[tuple[str, str], list[_Made]] = {}
    unseen: dict[tuple[str, str], int] = {}
    for stage, output, named in _outputs(paths):
        looked_at = [path for _, some in itertools.groupby(named, os.path.dirname) for path in sample(list(some))]
        unseen[stage, output.name] = len(named) - len(looked_at)
        for path in looked_at:
            made = _made(paths, path, Product(stage, output, paths.wildcards(path, stage, output.name)), pipeline)
            if made:
                kinds.setdefault((made.product.stage, output.name), []).append(made)
    return [alike for kind, files in kinds.items() for alike in _grouped(files, unseen.get(kind, 0))]


class _Made(NamedTuple):
    """A file, and how it was made."""

    file: str
    product: Product
    record: Provenance
    is_wanted: bool
    differences: list[Difference]
    options: dict[str, Any]

    @property
    def made_by(self) -> str:
        engine = self.record.get("inputs", {}).get("engine")
        return f"ffn {self.record.get('version')}{f', {engine}' if engine else ''}"

    @property
    def way(self) -> str:
        """What files have in common that were made in the same way."""
        return json.dumps([self.made_by, self.is_wanted, self.differences, self.options], sort_keys=True)


def _grouped(files: list[_Made], num_unseen: int) -> Iterator[MadeAlike]:
    groups: dict[str, list[_Made]] = {}
    for made in files:
        groups.setdefault(made.way, []).append(made)
    for group in groups.values():
        first, names = group[0], [made.file for made in group]
        facts = (first.made_by, first.is_wanted, first.differences, first.record)
        yield MadeAlike(first.product.stage, names, len(files), len(files) + num_unseen, *facts)


def _made(paths: RunPaths, path: str, product: Product, pipeline: Pipeline | None) -> _Made | None:
    """Compare a file with the configuration; None if it is unfinished or has no provenance."""
    record, file = read_provenance(path) if finished([path]) else {}, os.path.relpath(path, paths.root)
    if not record.get("stage"):
        return None
    product = product._replace(stage=record["stage"]) if product.stage in VOLUMES else product
    return _compared(file, product, record, pipeline, pipeline is None or _is_target(pipeline, product, file))


def _compared(file: str, product: Product, record: Provenance, pipeline: Pipeline | None, is_target: bool) -> _Made:
    is_wanted = is_target and (pipeline is None or product.volume in ("", *pipeline.run.volumes))
    recipe = recorded_recipe(record, product)
    now = configured_recipe(pipeline, record["stage"], product) if pipeline and is_wanted else Recipe({}, {})
    options = {key: value for key, value in recipe.options.items() if not now.options or key in now.options}
    return _Made(file, product, record, is_wanted, _differences(recipe, now), options)


def _outputs(paths: RunPaths) -> Iterator[tuple[str, Output, list[str]]]:
    """Yield every output of the stages, once, with the paths that have its name."""
    seen = set()  # `synth` and `ingest` make the same files
    for stage in STAGES.values():
        for output in stage.outputs:
            if output.path not in seen:
                seen.add(output.path)
                yield stage.name, output, paths.named(stage.name, output.name)


def _is_target(pipeline: Pipeline, product: Product, file: str) -> bool:
    """Whether the configuration makes a file below the run's folder; taken for granted if its volumes are unknown."""
    if not pipeline.places:
        return True
    _, output, wildcards = product
    if output.boxes:  # of which there may be a million
        is_made = product.volume in getattr(pipeline, output.of) and wildcards.get("order", "") in pipeline.orders
        return is_made and wildcards["subvolume"] in getattr(pipeline, output.boxes)[product.volume]
    stages = VOLUMES if product.stage in VOLUMES else (product.stage,)
    made = (without_metadata(path) for stage in stages for path in pipeline.files(stage, output.name, **wildcards))
    return f"{pipeline.paths.root}/{file}" in made


def _differences(made: Recipe, now: Recipe) -> list[Difference]:
    pairs = ((made.options, now.options), (made.inputs, now.inputs))
    return [
        Difference(key, was[key], value)
        for was, wanted in pairs
        for key, value in wanted.items()
        if key in was and was[key] != value and not is_left_open(key, value)
    ]


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
