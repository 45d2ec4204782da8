"""The script that a scheduler runs, on this machine."""

import os
import stat
import subprocess
import time

import pytest

from ffn.cluster import batch as module
from ffn.cluster.batch import STATE, exports, make_state, read_job, warn_of_secrets, write_script
from ffn.errors import ClusterError
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


def test_a_job_that_is_told_to_end_and_started_again_goes_on(folder, job_script, record, monkeypatch):
    """As by a preemption: for Snakemake it has not failed, so it keeps its attempt and its memory."""
    monkeypatch.setenv("COBALT_JOBID", "7")
    path = job_script("if [ -e tried ]; then exit 0; fi; touch tried; sleep 600", **TRAINING)
    script = write_script(read_job(path), path, cobalt)
    record("7", "submitted")
    job = subprocess.Popen([script])
    while not (folder / "tried").exists():
        time.sleep(0.05)
    job.terminate()
    assert job.wait() not in (0, -15)
    assert not (STATE / "7.exit").exists()
    assert subprocess.run([script]).returncode == 0
    assert (STATE / "7.exit").read_text().strip() == "0"


def test_a_job_that_snakemake_does_not_know_does_nothing(folder, job_script, monkeypatch):
    monkeypatch.setenv("COBALT_JOBID", "7")
    monkeypatch.setattr(module, "RECORD_SECONDS", 1)
    path = job_script(f"touch {folder}/made", **TRAINING)
    done = subprocess.run([write_script(read_job(path), path, cobalt)], capture_output=True, text=True)
    assert done.returncode == 1 and not (folder / "made").exists() and not (STATE / "7.exit").exists()


def test_the_folder_of_another_user_is_a_line(folder, monkeypatch):
    def refused(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("pathlib.Path.chmod", refused)
    with pytest.raises(ClusterError, match="^.snakemake/cluster: belongs to"):
        make_state()


@pytest.fixture
def loose_umask():
    before = os.umask(0)
    yield
    os.umask(before)


def test_only_its_owner_reads_what_a_job_needs(folder, job_script, loose_umask):
    STATE.chmod(0o755)  # as of version 0.3
    make_state()
    path = job_script(**TRAINING)
    script = write_script(read_job(path), path, cobalt)
    files = [STATE, script, script.with_suffix(".job")]
    assert [stat.S_IMODE(file.stat().st_mode) for file in files] == [0o700] * 3


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("https_proxy", "http://ada:s3cret@proxy:3128"),
        ("HTTP_PROXY", "ada:s3cret@proxy:3128"),
        ("FFN_DATA_URL", "https://s3cret@data.org/volume"),
        ("FFN_LAUNCH_SECRET", "s3cret"),
        ("TF_API_TOKEN", "s3cret"),
        ("NCCL_PASSWORD", "s3cret"),
        ("HOROVOD_API_KEY", "s3cret"),
    ],
)
def test_no_script_holds_a_password_and_one_line_says_so(monkeypatch, caplog, name, value):
    monkeypatch.setenv(name, value)
    assert not any("s3cret" in line or name in line for line in exports())
    warn_of_secrets()
    [line] = caplog.messages
    assert line.startswith(f"{name}: ") and "s3cret" not in line


def test_a_proxy_without_a_password_is_passed_on(monkeypatch, caplog):
    monkeypatch.setenv("https_proxy", "http://proxy:3128")
    monkeypatch.setenv("PATH", "/opt/python@3.11/bin:/bin")
    assert {"export https_proxy=http://proxy:3128", "export PATH=/opt/python@3.11/bin:/bin"} <= set(exports())
    warn_of_secrets()
    assert caplog.messages == []


def test_jobs_get_the_settings_of_libraries_and_no_other_variables(monkeypatch):
    monkeypatch.setenv("OMPI_MCA_btl_tcp_if_include", "ib0; rm -rf /")
    monkeypatch.setenv("SECRET", "x")
    fast = {"FI_PROVIDER": "cxi", "MPICH_OFI_NIC_POLICY": "GPU", "CUDA_HOME": "/cuda", "XLA_FLAGS": "a"}
    for name, value in fast.items():
        monkeypatch.setenv(name, value)
    assert {f"export {name}={value}" for name, value in fast.items()} <= set(exports())
    assert "export OMPI_MCA_btl_tcp_if_include='ib0; rm -rf /'" in exports()
    assert not any("SECRET" in line for line in exports())
