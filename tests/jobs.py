"""What tests of stages that work in blocks share: one job, several, and killed ones end with the same files."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from ffn.cli import main
from ffn.io.block_log import JobLog
from ffn.io.blocks import Job

Command = Callable[..., object]  # runs the stage: takes the folder of its output, and the option of a job


class Killed(BaseException):
    """What nothing catches: ends a stage at once, as a signal would."""


def options(job: str) -> list[str]:
    """Return the options of a job: ``match 2-of-3``, ``match``, ``2-of-3``, or nothing for everything."""
    words = job.split()
    share = [word for word in words if "-of-" in word]
    step = [word for word in words if word not in share]
    return [*(["--step", *step] if step else []), *(["--job", *share] if share else [])]


def job_of(job: str, record_path: str | None = None) -> Job:
    """Return the job of the same words."""
    words = dict(zip(options(job)[::2], options(job)[1::2], strict=True))
    share = Job.parse(words["--job"]) if "--job" in words else Job()
    return Job(share.number, share.of, words.get("--step", ""), record_path)


def files(folder: Path) -> dict[str, bytes]:
    """Return the content of all files in a folder, by their names."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def running(words: Sequence[str], name: str) -> Command:
    """Return a function that runs a stage by its command line; its output has this name."""

    def run(folder: Path, *options: str) -> None:
        folder.mkdir(exist_ok=True)
        assert main([*words, *options, "--out", f"{folder}/{name}"]) == 0

    return run


def require_same_files(
    run: Command, folder: Path, jobs: Sequence[str], blocks_between_kills: int = 1
) -> dict[str, bytes]:
    """Check that `jobs`, and a job that is killed every few blocks, make what one job makes; return that."""
    run(folder / "one")
    for job in jobs:
        run(folder / "several", *options(job))
    kills = 0
    while _is_killed(run, folder / "killed", blocks_between_kills):
        kills += 1
    made = files(folder / "one")
    assert kills and files(folder / "several") == made == files(folder / "killed")
    return made


def _is_killed(run: Command, folder: Path, num_blocks: int) -> bool:
    """Run the stage until it is about to write the record of one block more, which is then not finished."""
    finish, calls = JobLog.finish, []

    def killed(*arguments):
        calls.append(arguments)
        if len(calls) > num_blocks:
            raise Killed
        finish(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JobLog, "finish", killed)
        try:
            run(folder)
        except Killed:
            return True
    return False
