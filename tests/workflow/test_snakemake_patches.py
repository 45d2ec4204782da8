"""What the patches of Snakemake mend, each on a real Snakemake that fails without it."""

import logging
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import snakemake_executor_plugin_slurm

from ffn.io.atomic import AGAIN
from ffn.workflow import snakemake_patches

from ..small_run import fork_snakemake, shown

PATCHED = "from ffn.workflow import snakemake_patches\nsnakemake_patches.apply(workflow)\n"
LONG = """
rule long:
    output: "never"
    shell: "touch started; until [ -e enough ]; do sleep 0.1; done; exit 1"
"""
GROUPED = '''
rule all:
    input: "1.txt", "2.txt"

rule part:
    output: "{n}.txt"
    group: "parts"
    shell:
        """
        echo run >> ran-{wildcards.n}
        if [ {wildcards.n} = 2 ] && ! [ -e failed ]; then
            until [ -e 1.txt ]; do sleep 0.1; done
            touch failed
            exit 1
        fi
        touch {output}
        """
'''
FAILING = """
rule {name}:
    output: "never-{name}"
    log: "{name}.log"
    params: url="https://me:secret@host/raw"
    shell: "(echo; echo 'ffn: error: {text}'; echo) > {{log}}; cat {{log}} >> all; exit 2 # {{params.url}}"
"""
CHANGED = """
rule last:
    input: "made"
    output: "last"
    shell: "cp {input} {output}"

rule made:
    output: "made"
    group: "parts"
    params: config["value"]
    shell: "[ {params} = 1 ] || [ -e failed ] || {{ touch failed {config[left]}; exit 1; }}; echo {params} > {output}"
"""


def snakemake(folder, rules, *arguments, output=subprocess.DEVNULL):
    (folder / "Snakefile").write_text(PATCHED + rules)
    command = [sys.executable, "-m", "snakemake", "--nolock", *arguments]
    return subprocess.Popen(command, cwd=folder, stdout=output, stderr=subprocess.STDOUT)


def ended(folder, rules, *arguments):
    """Run Snakemake to its end."""
    (folder / "Snakefile").write_text(PATCHED + rules)
    return fork_snakemake(["--nolock", *arguments], folder)


def on_a_cluster(folder):
    """Options that submit groups of jobs."""
    path = folder / "submit"
    path.write_text('#!/bin/bash\nbash "$1" >/dev/null 2>&1 & echo $!\n')
    path.chmod(0o755)
    options = ["--jobs", "2", "--cores", "2", "--seconds-between-status-checks", "1"]
    return ["--executor", "cluster-generic", *options, "--cluster-generic-submit-cmd", str(path)]


def wait_for(path: Path, process):
    while not path.exists():
        assert process.poll() is None
        time.sleep(0.05)


@pytest.mark.slow
def test_snakemake_locks_what_the_kernel_cannot(tmp_path):
    """Although the profile says `nolock`."""
    rules = f"onstart:\n    snakemake_patches.lock(workflow)\n{LONG}"
    first = snakemake(tmp_path, rules, "--cores", "1", "never")
    try:
        wait_for(tmp_path / "started", first)
        second = snakemake(tmp_path, rules, "--cores", "1", "never", output=subprocess.PIPE)
        assert "--unlock" in second.communicate()[0].decode() and second.returncode == 1
    finally:
        (tmp_path / "enough").touch()
        first.wait()
    assert not list(tmp_path.glob(".snakemake/locks/*"))


@pytest.mark.parametrize(("has_launcher", "inside"), [(True, ["segment"]), (False, ["train", "segment"])])
def test_what_a_site_launches_runs_outside_the_container(has_launcher, inside):
    """The site's launcher is not in the container; ours is."""
    rules = [
        SimpleNamespace(name=name, shellcmd="ffn", container_img=None, resources=resources)
        for name, resources in (("train", {"mpi": "srun"}), ("segment", {}))
    ]
    workflow = SimpleNamespace(modifier=SimpleNamespace(rules=rules))
    snakemake_patches.give_container(workflow, "ffn.sif", has_launcher)
    assert [rule.name for rule in rules if rule.container_img == "ffn.sif"] == inside


def test_jobs_of_an_array_are_submitted_while_others_are_ready():
    """Snakemake's limit of jobs lets only some of them through, and the plugin never sees these again."""
    snakemake_patches.apply(SimpleNamespace(modifier=SimpleNamespace(is_main_snakefile=lambda: True)))
    rule = SimpleNamespace(name="segment")
    jobs = [SimpleNamespace(rule=rule, name=rule.name, is_group=lambda: False) for _ in range(7)]
    submitted = []
    executor = SimpleNamespace(
        array_jobs={"segment"},
        max_array_size=1000,
        logger=logging.getLogger(),
        workflow=SimpleNamespace(dag=SimpleNamespace(ready_jobs=jobs[3:])),
        _main_event_loop=object(),
        _submit_array_jobs=submitted.append,
        _submit_job=lambda job: submitted.append([job]),
    )
    for given in (jobs[:3], jobs[3:4]):
        snakemake_executor_plugin_slurm.Executor.run_jobs(executor, given)
    assert submitted == [jobs[:3], jobs[3:4]]


@pytest.mark.slow
def test_snakemake_and_its_job_end_after_any_number_of_sigterms(tmp_path):
    """Its own handler waits for the job, and for a lock that an earlier signal holds."""
    process = snakemake(tmp_path, LONG, "--cores", "1", "--retries", "1", "never")
    wait_for(tmp_path / "started", process)
    for _ in range(1000):
        process.send_signal(signal.SIGTERM)
        time.sleep(0.001)
    assert process.wait() in (1, -signal.SIGTERM)  # of a signal that comes when Python has ended


@pytest.mark.slow
def test_a_failed_group_repeats_only_what_is_not_done(tmp_path):
    groups = ["--group-components", "parts=2", "--retries", "1", "--keep-incomplete"]
    shown(ended(tmp_path, GROUPED, *on_a_cluster(tmp_path), *groups))
    assert [len((tmp_path / f"ran-{n}").read_text().splitlines()) for n in (1, 2)] == [1, 2]


@pytest.mark.parametrize(
    ("left", "is_grouped"),
    [("", False), ("made", False), pytest.param("made; kill -9 $PPID", True, marks=pytest.mark.slow)],
)
def test_what_failed_after_a_change_is_still_to_be_done(tmp_path, left, is_grouped):
    options = [*(on_a_cluster(tmp_path) if is_grouped else ["--cores", "1"]), "--config", f"left={left}"]
    runs = [ended(tmp_path, CHANGED, *options, f"value={i}").returncode for i in (1, 2, 2)]
    assert runs == [0, 1, 0] and (tmp_path / "last").read_text() == "2\n"


def test_a_job_on_a_full_disk_runs_once_and_errors_are_the_last_lines(tmp_path):
    texts = {"full": f"no space is left, {AGAIN}", "other": "found a comma"}
    rules = "".join(FAILING.format(name=name, text=text) for name, text in texts.items())
    rules += 'rule missing:\n    output: "never"\n    shell: "true"\n'
    options = ["--cores", "1", "--retries", "1", "--keep-going", "--printshellcmds", "--latency-wait", "0"]
    with (tmp_path / "said").open("w") as said:
        snakemake(tmp_path, rules, *options, "never-full", "never-other", "never", output=said).wait()
    *before, one, two = (tmp_path / "said").read_text().splitlines()
    assert {one, two} == {f"ffn: error: {text}" for text in texts.values()}
    assert sum("MissingOutputException" in line for line in before) == 2, "it has no log"
    kept = [log.read_text() for log in (tmp_path / ".snakemake/log").iterdir()]
    assert kept and not any("secret" in line for line in [*before, *kept])
    ran = (tmp_path / "all").read_text()
    assert [ran.count(text) for text in texts.values()] == [1, 2]
