"""What the files of a run were made with, and where its configuration says something else by now."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from textwrap import shorten
from typing import Any, NamedTuple

from ffn.io.provenance import Provenance, read_provenance
from ffn.io.store_names import without_metadata
from ffn.report.run_folder import configured_pipeline
from ffn.workflow.paths import RunPaths
from ffn.workflow.pipeline import Pipeline
from ffn.workflow.recorded import VOLUMES, Product, Recipe, configured_recipe, is_left_open, recorded_recipe
from ffn.workflow.stages import STAGES

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
        Number of files of this kind, those that were made in other ways included.
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
        if self.num_files == 1:
            return self.files[0]
        share = f" of {self.num_files}" if len(self.files) < self.num_files else ""
        return f"{len(self.files)}{share} files: {self.files[0]}{', …' if len(self.files) > 1 else ''}"

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
    return f"{num_others} of {sum(count for count, _ in counts)} files {verb} not made as config.yaml says"


def read_made_with(run_dir: Path) -> list[MadeAlike]:
    """Compare every file that has provenance with the configuration of the run.

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
    kinds: dict[tuple[str, str], list[_Made]] = {}
    for made in _files(paths, configured_pipeline(paths)):
        kinds.setdefault((made.product.stage, made.product.output.name), []).append(made)
    return [alike for files in kinds.values() for alike in _grouped(files)]


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


def _grouped(files: list[_Made]) -> Iterator[MadeAlike]:
    groups: dict[str, list[_Made]] = {}
    for made in files:
        groups.setdefault(made.way, []).append(made)
    for group in groups.values():
        first, names = group[0], [made.file for made in group]
        facts = (first.made_by, first.is_wanted, first.differences, first.record)
        yield MadeAlike(first.product.stage, names, len(files), *facts)


def _files(paths: RunPaths, pipeline: Pipeline | None) -> Iterator[_Made]:
    targets = _targets(pipeline) if pipeline else None
    for path, product in _outputs(paths):
        record, file = read_provenance(path), os.path.relpath(path, paths.root)
        if record.get("stage"):
            product = product._replace(stage=record["stage"]) if product.stage in VOLUMES else product
            yield _compared(file, product, record, pipeline, targets is None or file in targets)


def _compared(file: str, product: Product, record: Provenance, pipeline: Pipeline | None, is_target: bool) -> _Made:
    is_wanted = is_target and (pipeline is None or product.volume in ("", *pipeline.run.volumes))
    recipe = recorded_recipe(record, product)
    now = configured_recipe(pipeline, record["stage"], product) if pipeline and is_wanted else Recipe({}, {})
    options = {key: value for key, value in recipe.options.items() if not now.options or key in now.options}
    return _Made(file, product, record, is_wanted, _differences(recipe, now), options)


def _outputs(paths: RunPaths) -> Iterator[tuple[Path, Product]]:
    """Yield every output of a stage that exists, once."""
    seen = set()  # `synth` and `ingest` make the same files
    for stage in STAGES.values():
        for output in stage.outputs:
            for path in paths.existing(stage.name, output.name):
                if path not in seen:
                    seen.add(path)
                    yield path, Product(stage.name, output, paths.wildcards(path, stage.name, output.name))


def _targets(pipeline: Pipeline) -> set[str] | None:
    """Return every file that the configuration makes, below the run's folder; None if that is not known."""
    if not pipeline.places:
        return None
    outputs = ((stage.name, output.name) for stage in STAGES.values() for output in stage.outputs)
    files = (without_metadata(path) for names in outputs for path in pipeline.files(*names))
    return {os.path.relpath(path, pipeline.paths.root) for path in files}


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
