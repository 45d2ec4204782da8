"""Slurm's command lines, and what they print."""

from dataclasses import replace

from ffn.machine.schedulers import slurm


def test_the_submit_command_has_what_training_needs(training):
    line = slurm.submit_command(training, "a.sh", "a.log")
    assert {"--nodes=3", "--ntasks=12", "--cpus-per-task=8", "--time=90", "--mem=2000"} <= set(line)
    assert {"--gpus-per-node=4", "--partition=prod", "--account=brains"} <= set(line)


def test_a_site_may_refuse_requests_for_memory(training):
    job = replace(training, site={**training.site, "mem_mb": 0})
    assert not any("mem" in word for word in slurm.submit_command(job, "a.sh", "a.log"))


def test_a_percent_sign_in_the_log_is_no_pattern(training):
    assert "--output=100%%/a.log" in slurm.submit_command(training, "a.sh", "100%/a.log")


def test_the_id_is_found_with_and_without_a_cluster():
    assert slurm.job_id("4711\n") == slurm.job_id("4711;cluster\n") == "4711"
    assert slurm.job_id("error\n") is None


def test_the_queue_is_read_and_a_failure_is_no_answer(done):
    assert slurm.queued(done("12\n13\n")) == {"12", "13"}
    assert slurm.queued(done(stderr="no controller", code=1)) is None
