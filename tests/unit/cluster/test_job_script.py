"""The script that a scheduler runs, on this machine."""

import subprocess
import time

from ffn.cluster import job_script as module
from ffn.cluster.job_script import STATE, exports, read_job, write_script
from ffn.machine.schedulers import cobalt

TRAINING = {"rule": "train", "resources": {"runtime": 90, "mpi": "aprun"}}


def test_a_job_is_read_from_snakemake_and_the_environment(job_script, monkeypatch):
    monkeypatch.setenv("FFN_QUEUE", "debug")
    monkeypatch.delenv("FFN_ACCOUNT", raising=False)
    resources = {"runtime": 30, "queue": "prod"}
    job = read_job(job_script(type="group", groupid="segment", threads=64, resources=resources))
    assert (job.name, job.nodes, job.threads, job.minutes, job.is_mpi) == ("ffn-segment", 1, 64, 30, False)
    assert job.site["queue"] == "debug" and "account" not in job.site


def test_a_job_knows_when_it_ends_and_records_its_exit_code(folder, job_script, record, monkeypatch):
    """Its script starts the clock, so time in the queue does not count."""
    monkeypatch.setenv("COBALT_JOBID", "7")
    path = job_script(f"echo $FFN_JOB_END_TIME > {folder}/end", **TRAINING)
    script = write_script(read_job(path), path, cobalt)
    record("7", "submitted")
    before = int(time.time())
    assert subprocess.run([script]).returncode == 0
    assert before <= int((folder / "end").read_text()) - 90 * 60 <= time.time()
    assert (STATE / "7.exit").read_text().strip() == "0"


def test_a_job_that_snakemake_does_not_know_does_nothing(folder, job_script, monkeypatch):
    monkeypatch.setenv("COBALT_JOBID", "7")
    monkeypatch.setattr(module, "RECORD_SECONDS", 1)
    path = job_script(f"touch {folder}/made", **TRAINING)
    done = subprocess.run([write_script(read_job(path), path, cobalt)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, "no Snakemake waits for this job\n")
    assert not (folder / "made").exists() and not (STATE / "7.exit").exists()


def test_jobs_get_the_settings_of_libraries_and_no_other_variables(monkeypatch):
    monkeypatch.setenv("OMPI_MCA_btl_tcp_if_include", "ib0; rm -rf /")
    monkeypatch.setenv("SECRET", "x")
    assert "export OMPI_MCA_btl_tcp_if_include='ib0; rm -rf /'" in exports()
    assert not any("SECRET" in line for line in exports())
