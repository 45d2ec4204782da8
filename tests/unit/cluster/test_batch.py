"""Submit lines, listings and the state of jobs, without any scheduler."""

import json
import os
import subprocess
import sys
import time

import pytest

from ffn.cluster import batch, job_script
from ffn.cluster.site import check_none_left
from ffn.errors import ClusterError
from ffn.machine.schedulers import BatchJob, cobalt, pbs, slurm

SITE = {"mem_mb": 2000, "cores_per_node": 32, "account": "brains", "queue": "prod", "pbs_filesystems": "home:eagle"}
TRAIN = BatchJob("ffn-train", nodes=3, threads=8, gpus=4, minutes=90, is_mpi=True, site={**SITE, "tasks": 12})


def done(stdout="", stderr="", code=0):
    return subprocess.CompletedProcess(["qstat"], code, stdout, stderr)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    batch.STATE.mkdir(parents=True)
    return tmp_path


def record(job_id, kind, text="", age=0.0):
    path = batch.STATE / f"{job_id}.{kind}"
    path.write_text(text)
    os.utime(path, (time.time() - age, time.time() - age))


def ask(monkeypatch, capsys, job_id, listed, scheduler=cobalt):
    """Return the answer of the status script where qstat gives `listed`."""
    asked = []
    monkeypatch.setattr(batch, "run_command", lambda command: asked.append(command) or listed)
    assert batch.status(scheduler, [job_id]) == 0
    return capsys.readouterr().out.strip(), asked


def test_a_job_inherits_nothing_of_the_job_that_snakemake_runs_in(monkeypatch):
    monkeypatch.setenv("SLURM_MEM_PER_CPU", "100")
    monkeypatch.setenv("SLURM_CONF", "/etc/other.conf")
    assert batch.run_command(["sh", "-c", "echo $SLURM_MEM_PER_CPU $SLURM_CONF"]).stdout == "/etc/other.conf\n"


def test_submit_lines():
    assert pbs.submit_command(TRAIN, "a.sh", "a.log") == (
        "qsub -l select=3:ncpus=32:mpiprocs=4:ngpus=4 -l place=scatter -l walltime=01:30:00 -l filesystems=home:eagle "
        "-r n -N ffn-train -j oe -o a.log -q prod -A brains a.sh"
    ).split(" ")
    assert cobalt.submit_command(TRAIN, "a.sh", "a.log") == (
        "qsub -n 3 -t 90 --mode script --jobname ffn-train -o a.log -e a.log -q prod -A brains a.sh"
    ).split(" ")
    line = slurm.submit_command(TRAIN, "a.sh", "a.log")
    assert {"--nodes=3", "--ntasks=12", "--cpus-per-task=8", "--time=90", "--mem=2000"} <= set(line)


def test_ids_are_found_among_remarks():
    assert cobalt.job_id('Job routed to queue "x".\nMemory mode set\n4711\n') == "4711"
    assert pbs.job_id("note\n4711.server-01.hsn\n") == "4711.server-01.hsn"
    assert cobalt.job_id("no\n") is pbs.job_id("no\n") is None


def test_listings():
    table = "JobID  State   \n===============\n12     running \n13     user_hold\n"
    assert cobalt.queued(done(table)) == {"12", "13"}
    assert cobalt.queued(done(code=1)) == set()
    assert cobalt.queued(done(stderr="cannot connect", code=1)) is None
    jobs = "".join(
        f"Job Id: {name}\n    Job_Name = ffn-train\n    job_state = {state}\n    Variable_List = A=\\',\n\tB=\"c\\d\n\n"
        for name, state in (("1.s", "R"), ("2.s", "F"), ("3.s.domain.org", "Q"))
    )
    assert pbs.queued(done(jobs, "qstat: Unknown Job Id 4.s\n", 153)) == {"1.s", "3.s.domain.org"}
    assert pbs.queued(done("", "qstat: cannot connect to server x (errno=111)\n", 111)) is None


def test_script_properties(tmp_path, monkeypatch):
    monkeypatch.setenv("FFN_QUEUE", "debug")
    monkeypatch.delenv("FFN_ACCOUNT", raising=False)
    values = {"type": "group", "groupid": "segment", "threads": 64, "resources": {"runtime": 30, "queue": "prod"}}
    script = tmp_path / "job.sh"
    script.write_text(f"#!/bin/sh\n# properties = {json.dumps(values)}\ntrue\n")
    job = job_script.read_job(script)
    assert (job.name, job.nodes, job.threads, job.minutes, job.is_mpi) == ("ffn-segment", 1, 64, 30, False)
    assert job.site["queue"] == "debug" and "account" not in job.site


def test_a_job_knows_its_end(folder, monkeypatch):
    """Its script starts the clock, so that time in the queue does not count."""
    monkeypatch.setenv("COBALT_JOBID", "7")
    ended = folder / "ended"
    values = {"type": "single", "rule": "train", "resources": {"runtime": 90, "mpi": "aprun"}}
    (folder / "job.sh").write_text(f"# properties = {json.dumps(values)}\necho $FFN_JOB_END_TIME > {ended}\n")
    script = job_script.write_script(job_script.read_job(folder / "job.sh"), folder / "job.sh", cobalt)
    record("7", "submitted")
    before = int(time.time())
    assert subprocess.run([script]).returncode == 0
    assert before <= int(ended.read_text()) - 90 * 60 <= time.time()
    assert (batch.STATE / "7.exit").read_text().strip() == "0"


def test_a_job_that_snakemake_was_not_told_of_does_nothing(folder, monkeypatch):
    monkeypatch.setenv("COBALT_JOBID", "7")
    monkeypatch.setattr(job_script, "RECORD_SECONDS", 1)
    values = {"type": "single", "rule": "train", "resources": {"runtime": 90, "mpi": "aprun"}}
    (folder / "job.sh").write_text(f"# properties = {json.dumps(values)}\ntouch {folder}/made\n")
    script = job_script.write_script(job_script.read_job(folder / "job.sh"), folder / "job.sh", cobalt)
    done = subprocess.run([script], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, "no Snakemake waits for this job\n")
    assert not (folder / "made").exists() and not (batch.STATE / "7.exit").exists()


@pytest.mark.parametrize(("code", "word"), [("0", "success"), ("1", "failed"), ("143", "failed")])
def test_exit_code_on_record_counts(folder, monkeypatch, capsys, code, word):
    record("7", "submitted", age=60)
    record("7", "exit", code)
    assert ask(monkeypatch, capsys, "7", done(code=1)) == (word, [])


def test_one_question_for_all_jobs(folder, monkeypatch, capsys):
    for job_id in ("7", "8", "9"):
        record(job_id, "submitted", age=60)
    record("9", "exit", "0")
    assert ask(monkeypatch, capsys, "7", done("7 running\n8 queued\n")) == (
        "running",
        [[*"qstat --header JobID:State 7 8".split()]],
    )
    assert ask(monkeypatch, capsys, "8", done()) == ("running", [])


def test_a_lost_job_fails_after_its_time(folder, monkeypatch, capsys):
    record("7", "submitted", age=600)
    assert ask(monkeypatch, capsys, "7", done(code=1))[0] == "running"
    record("7", "gone", age=batch.LOST_SECONDS + 1)
    assert ask(monkeypatch, capsys, "7", done(code=1))[0] == "failed"


def test_a_job_that_comes_back_was_not_lost(folder, monkeypatch, capsys):
    record("7", "submitted", age=600)
    record("7", "gone", age=1000)
    assert ask(monkeypatch, capsys, "7", done("7 running\n"))[0] == "running"
    assert not (batch.STATE / "7.gone").exists()


def test_a_cancelled_job_is_not_waited_for(folder, monkeypatch, capsys):
    record("7", "submitted", age=600)
    record("7", "cancelled")
    assert ask(monkeypatch, capsys, "7", done(code=1))[0] == "failed"


@pytest.mark.parametrize("listed", [done(stderr="cannot connect", code=1), done(stderr="timeout", code=127)])
def test_an_unreachable_scheduler_proves_nothing(folder, monkeypatch, capsys, listed):
    record("7", "submitted", age=600)
    record("7", "gone", age=1000)
    assert ask(monkeypatch, capsys, "7", listed)[0] == "running"


def test_a_listing_before_the_submission_proves_nothing(folder, monkeypatch, capsys):
    (batch.STATE / "queue.json").write_text(json.dumps({"asked": time.time() - 5, "queued": []}))
    record("7", "submitted")
    record("7", "gone", age=1000)
    assert ask(monkeypatch, capsys, "7", done()) == ("running", [])


def test_status_never_fails(folder, monkeypatch, capsys):
    (batch.STATE / "queue.json").write_text("{")
    record("7", "submitted", age=60)
    assert ask(monkeypatch, capsys, "7", done())[0] == "running"


def test_a_job_that_is_over_is_not_asked_for(folder, monkeypatch, capsys):
    record("7", "submitted", age=60)
    record("7", "exit", "0")
    assert ask(monkeypatch, capsys, "7", done())[0] == "success"
    assert not (batch.STATE / "7.submitted").exists()
    assert ask(monkeypatch, capsys, "7", done())[0] == "success", "a Snakemake that was started again asks, too"


def submitted(folder, monkeypatch, *answers):
    """Submit a job, the scheduler answers so in turn; return the exit code and the number of questions."""
    script = folder / "job.sh"
    values = {"rule": "train", "output": ["results/a/model.yaml"], "resources": {"runtime": 9, "mem_mb": 1}}
    script.write_text(f"# properties = {json.dumps(values)}\n")
    left = list(answers)
    monkeypatch.setattr(batch, "run_command", lambda command: left.pop(0))
    monkeypatch.setattr(batch, "SUBMIT_PAUSES", (0.0, 0.0))
    return batch.submit(cobalt, [str(script)]), len(answers) - len(left)


def test_submitting_writes_the_command_that_cancels(folder, monkeypatch, capsys):
    """Snakemake runs its cancel command without a shell, so that command takes no arguments of its own."""
    (folder / "bin").mkdir()
    place = folder / "cancelled"
    (folder / "bin/qdel").write_text(f"#!/bin/sh\necho $* > {place}.tmp; mv {place}.tmp {place}\n")
    (folder / "bin/qdel").chmod(0o755)
    assert submitted(folder, monkeypatch, done("7\n"))[0] == 0
    path = f"{folder}/bin:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([".snakemake/cluster/cancel", "7", "8"], env=environment, check=True)
    deadline = time.monotonic() + 60
    while not place.exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert place.read_text() == "7 8\n"
    assert all((batch.STATE / f"{job_id}.cancelled").exists() for job_id in ("7", "8"))


def test_a_refused_job_is_submitted_again(folder, monkeypatch, capsys):
    refused = done(stderr="qsub: would exceed the limit of the queue\n", code=1)
    assert submitted(folder, monkeypatch, refused, done("7\n")) == (0, 2)
    assert capsys.readouterr().out == "7\n"
    assert submitted(folder, monkeypatch, refused, refused, refused) == (1, 3)
    assert "would exceed the limit" in capsys.readouterr().err


def test_a_submission_without_an_answer_is_not_repeated(folder, monkeypatch):
    """Its job may well be in the queue."""
    assert submitted(folder, monkeypatch, done(code=batch.NO_ANSWER), done("7\n")) == (1, 1)


def test_records_of_an_earlier_job_of_this_number_do_not_count(folder, monkeypatch, capsys):
    record("7", "exit", "0", age=900)
    record("7", "cancelled", age=900)
    assert submitted(folder, monkeypatch, done("7\n"))[0] == 0
    assert not (batch.STATE / "7.exit").exists() and not (batch.STATE / "7.cancelled").exists()


def test_nothing_starts_beside_the_jobs_of_a_killed_snakemake(folder, monkeypatch):
    for job_id in ("7", "8", "9"):
        assert submitted(folder, monkeypatch, done(f"{job_id}\n"))[0] == 0
    record("9", "exit", "0")
    monkeypatch.setattr(batch, "run_command", lambda command: done("7 running\n9 exiting\n"))
    submit = "python -m ffn.cluster.batch submit cobalt"
    with pytest.raises(ClusterError, match="^results/a: 1 jobs of an earlier Snakemake .* qdel 7$"):
        check_none_left(submit, "results/a")
    assert not (batch.STATE / "8.submitted").exists(), "it was in no queue any more"
    check_none_left(submit, "results/another")
    check_none_left(None, "results/a")
    monkeypatch.setattr(batch, "run_command", lambda command: done(stderr="cannot connect", code=1))
    with pytest.raises(ClusterError, match="qdel 7$"):
        check_none_left(submit, "results/a")


def test_jobs_get_the_settings_of_libraries(monkeypatch):
    monkeypatch.setenv("OMPI_MCA_btl_tcp_if_include", "ib0; rm -rf /")
    monkeypatch.setenv("SECRET", "x")
    assert "export OMPI_MCA_btl_tcp_if_include='ib0; rm -rf /'" in job_script.exports()
    assert not any("SECRET" in line for line in job_script.exports())


def test_a_log_with_a_percent_sign():
    assert "--output=100%%/a.log" in slurm.submit_command(TRAIN, "a.sh", "100%/a.log")
