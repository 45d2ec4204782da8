"""PBS Professional's command lines, and what they print."""

from dataclasses import replace

from ffn.machine.schedulers import pbs


def test_the_submit_command_has_what_training_needs(training):
    assert pbs.submit_command(training, "a.sh", "a.log") == (
        "qsub -l select=3:ncpus=32:mpiprocs=4:ngpus=4 -l place=scatter -l walltime=01:30:00 -l filesystems=home:eagle "
        "-r y -N ffn-train -j oe -o a.log -q prod -A brains a.sh"
    ).split(" ")


def test_a_job_of_one_process_has_no_ranks_and_no_gpus_it_did_not_ask_for(training):
    job = replace(training, nodes=1, gpus=0, is_mpi=False, site={"pbs_select": "mem=120gb"})
    assert pbs.submit_command(job, "a.sh", "a.log")[2] == "select=1:ncpus=8:mem=120gb"


def test_the_id_is_found_after_remarks():
    assert pbs.job_id("note\n4711.server-01.hsn\n") == "4711.server-01.hsn"
    assert pbs.job_id("no\n") is None


def test_the_queue_is_read_and_a_failure_is_no_answer(done):
    jobs = "".join(
        f"Job Id: {name}\n    Job_Name = ffn-train\n    job_state = {state}\n    Variable_List = A=\\',\n\tB=\"c\\d\n\n"
        for name, state in (("1.s", "R"), ("2.s", "F"), ("3.s.domain.org", "Q"))
    )
    assert pbs.queued(done(jobs, "qstat: Unknown Job Id 4.s\n", 153)) == {"1.s", "3.s.domain.org"}
    assert pbs.queued(done("", "qstat: cannot connect to server x (errno=111)\n", 111)) is None
