"""The one owner of ``results/<run>/…``: where each stage writes, and which segmentation is the final one."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable
from pathlib import Path

import yaml

from ffn.errors import ConfigError
from ffn.io.store_names import TABLES, jobs_folder, tracked_file
from ffn.model.choice import FOLDER
from ffn.workflow.run import RunConfig, load_run
from ffn.workflow.stages import STAGES, Output

WILDCARD = re.compile(r"\{(\w+)\}")
CONFIG = "config.yaml"


class RunPaths:
    """Files of a run.

    Examples
    --------
    >>> paths = RunPaths("results/demo")
    >>> paths.of("membrane"), paths.of("ingest", "labels", volume="cube")
    ('results/demo/membrane/{volume}.zarr', 'results/demo/volumes/cube/labels.zarr')
    """

    def __init__(self, root: str | Path) -> None:
        self.root = str(root)

    @property
    def config(self) -> str:
        """The configuration that the workflow read when it last started."""
        return f"{self.root}/{CONFIG}"

    @property
    def machine(self) -> str:
        """The engine and precision that `auto` takes in all jobs of the run; see `ffn.model.choice`."""
        return f"{self.root}/{FOLDER}"

    @property
    def subvolumes_of_a_job(self) -> str:
        """How many subvolumes a job floods at least, and whether on GPUs, if either was ever the case."""
        return f"{self.machine}/subvolumes-of-a-job.yaml"

    def of(self, stage: str, output: str | None = None, **wildcards: str) -> str:
        """Return where a stage writes; wildcards that are not given stay in the path, as Snakemake needs them."""
        path = find_output(stage, output).path
        return f"{self.root}/{WILDCARD.sub(lambda match: wildcards.get(match[1], match[0]), path)}"

    def file(self, stage: str, output: str | None = None, **wildcards: str) -> str:
        """Return the file that Snakemake watches for an output: that of a store is written last; see `of`."""
        return tracked_file(self.of(stage, output, **wildcards))

    def folder(self, stage: str) -> str:
        """Return the folder of a stage's first output, such as a model folder."""
        return os.path.dirname(self.of(stage))

    def job(
        self, stage: str, job: str = "{job}", step: str = "{step_name}", output: str | None = None, **wildcards: str
    ) -> str:
        """Return the record of a job that did a share of the blocks of a volume; its log is in the same folder."""
        return f"{self._jobs(stage, step, output, wildcards)}/{job}.json"

    def tables(self, stage: str, step: str, **wildcards: str) -> str:
        """Return the file that tells that a step of a stage is finished, and with which tables."""
        return f"{self._jobs(stage, step, None, wildcards)}/{TABLES}"

    def _jobs(self, stage: str, step: str, output: str | None, wildcards: dict[str, str]) -> str:
        path = self.of(stage, output, **wildcards)
        return str(jobs_folder(os.path.dirname(path) if "{subvolume}" in path else path, step))

    def corrections(self, volume: str) -> str:
        """Return where ``ffn correct`` copies the corrections of a volume."""
        return f"{os.path.dirname(self.of('merge', 'mapping', volume=volume))}/corrections.csv"

    def checkpoint(self, step: str) -> str:
        """Return a checkpoint of training."""
        return f"{self.folder('train')}/checkpoints/step-{step}"

    def study(self, *parts: str) -> str:
        """Return a file of the studies."""
        return "/".join([self.root, "studies", *parts])

    def file_list(self, name: str) -> str:
        """Return where the names of files are listed for a command."""
        return f"{self.root}/lists/{name}.txt"

    def existing(self, stage: str, output: str | None = None, **wildcards: str) -> list[Path]:
        """Return the existing files and stores of a stage, sorted, for all values of wildcards that are not given."""
        return finished(self.named(stage, output, **wildcards))

    def named(self, stage: str, output: str | None = None, **wildcards: str) -> list[str]:
        """Return all paths that have the name of an output, as `existing`, finished or not."""
        every = dict.fromkeys(WILDCARD.findall(find_output(stage, output).path), "*") | wildcards
        pattern = os.path.relpath(self.of(stage, output, **every), self.root)
        names = glob.glob(pattern, root_dir=self.root, include_hidden=True)
        return [f"{self.root}/{name}" for name in sorted(names, key=lambda name: name.replace("/", "\0"))]

    def log(self, *parts: str) -> str:
        """Return the path of a job's log, from its rule and its wildcards."""
        return f"{self.root}/logs/{'/'.join(parts)}.log"

    def benchmark(self, *parts: str) -> str:
        """Return where Snakemake writes a job's time and memory, from its rule and its wildcards."""
        return f"{self.root}/benchmarks/{'.'.join(parts)}.tsv"

    def is_run(self) -> bool:
        """Whether the folder has any output of a stage."""
        names = {Path(output.path).parts[0] for stage in STAGES.values() for output in stage.outputs}
        return any((Path(self.root) / name).is_dir() for name in names)

    def read_config(self) -> RunConfig | None:
        """Return the configuration of the run, or None in a folder without one, such as one made by hand.

        Options that an earlier version recorded, and this one does not have, are left out.
        """
        if not Path(self.config).is_file():
            return None
        try:
            return load_run(yaml.safe_load(Path(self.config).read_text()), extra="ignore")
        except (ConfigError, yaml.YAMLError, UnicodeDecodeError) as reason:
            found = f"{self.config}: cannot be read ({' '.join(str(reason).split())})"
            advice = "expected a configuration of this version. Correct it, or start the workflow again"
            raise ConfigError(f"{found}, {advice}") from None

    def base(self, run: RunConfig, **wildcards: str) -> str:
        """Return the segmentation that agglomeration starts from."""
        return self.of("consensus" if run.consensus.enabled else "reconcile", **{"order": "", **wildcards})

    def merged(self, run: RunConfig, **wildcards: str) -> str:
        """Return the segmentation after agglomeration, or the supervoxels if agglomeration is off."""
        return self.of("merge", **wildcards) if run.agglomerate.enabled else self.base(run, **wildcards)

    def segmentations(self, run: RunConfig, **wildcards: str) -> dict[str, str]:
        """Return the segmentations of a volume by name, in the order in which they are made."""
        found = {"base": self.base(run, **wildcards)}
        if run.agglomerate.enabled:
            found["agglomerated"] = self.merged(run, **wildcards)
        if run.is_filled:
            found["filled"] = self.of("fill", **wildcards)
        return found

    def final(self, run: RunConfig, **wildcards: str) -> str:
        """Return the final segmentation: the one that is exported and shown."""
        return list(self.segmentations(run, **wildcards).values())[-1]


def finished(paths: Iterable[str]) -> list[Path]:
    """Return the paths of files and of finished stores."""
    return [Path(path) for path in paths if os.path.exists(tracked_file(path))]


def find_output(stage: str, name: str | None = None) -> Output:
    """Return an output of a stage by its name, by default the first."""
    outputs = STAGES[stage].outputs
    return outputs[0] if name is None else next(output for output in outputs if output.name == name)


def any_of(names: Iterable[str]) -> str:
    """Return the regular expression of a wildcard that is one of `names`; it matches nothing if there are none.

    Examples
    --------
    >>> any_of(["cube", "fib25"]), any_of([])
    ('cube|fib25', '(?!)')
    """
    return "|".join(map(re.escape, names)) or "(?!)"
