"""The schedulers' command lines, and what they print."""

import subprocess
from dataclasses import replace

import pytest

from ffn.machine.schedulers import SCHEDULERS, BatchJob, LaunchedRank, cobalt, current_job_id, launched_rank, pbs, slurm

pytestmark = pytest.mark.usefixtures("no_launcher")

SITE = {"mem_mb": 2000, "cores_per_node": 32, "account": "brains", "queue": "prod", "pbs_filesystems": "home:eagle"}
# three nodes of four ranks, with a GPU for each rank
TRAINING = BatchJob("ffn-train", nodes=3, threads=8, gpus=4, minutes=90, is_mpi=True, site={**SITE, "tasks": 12})


def done(stdout="", stderr="", code=0):
    return subprocess.CompletedProcess(["qstat"], code, stdout, stderr)


@pytest.mark.parametrize("variable", ["COBALT_JOBID", "PBS_JOBID", "SLURM_JOB_ID"])
def test_a_process_knows_the_job_it_runs_in(monkeypatch, variable):
    for scheduler in SCHEDULERS.values():
        monkeypatch.delenv(scheduler.JOB_ID, raising=False)
    assert current_job_id() is None
    monkeypatch.setenv(variable, "4711")
    assert current_job_id() == "4711"


def test_the_submit_commands_have_what_training_needs():
    assert cobalt.submit_command(TRAINING, "a.sh", "a.log") == (
        "qsub -n 3 -t 90 --mode script --jobname ffn-train -o a.log -e a.log -q prod -A brains a.sh"
    ).split(" ")
    assert pbs.submit_command(TRAINING, "a.sh", "a.log") == (
        "qsub -l select=3:ncpus=32:mpiprocs=4:ngpus=4 -l place=scatter -l walltime=01:30:00 -l filesystems=home:eagle "
        "-r y -N ffn-train -j oe -o a.log -q prod -A brains a.sh"
    ).split(" ")
    line = set(slurm.submit_command(TRAINING, "a.sh", "a.log"))
    assert {"--nodes=3", "--ntasks=12", "--cpus-per-task=8", "--time=90", "--mem=2000"} <= line
    assert {"--gpus-per-node=4", "--partition=prod", "--account=brains"} <= line


def test_a_job_asks_for_nothing_that_it_does_not_need():
    job = replace(TRAINING, nodes=1, gpus=0, is_mpi=False, site={"pbs_select": "mem=120gb"})
    assert pbs.submit_command(job, "a.sh", "a.log")[2] == "select=1:ncpus=8:mem=120gb"
    assert cobalt.on_node(job) == "aprun -n 1 -N 1 -d 8 -j 1 -cc none"
    job = replace(TRAINING, site={**TRAINING.site, "mem_mb": 0})
    line = slurm.submit_command(job, "a.sh", "100%/a.log")
    assert not any("mem" in word for word in line) and "--output=100%%/a.log" in line


@pytest.mark.parametrize(
    ("scheduler", "output", "expected"),
    [
        (cobalt, 'Job routed to queue "x".\nMemory mode set\n4711\n', "4711"),
        (pbs, "note\n4711.server-01.hsn\n", "4711.server-01.hsn"),
        (slurm, "4711\n", "4711"),
        (slurm, "4711;cluster\n", "4711"),
        *((scheduler, "error\n", None) for scheduler in SCHEDULERS.values()),
    ],
)
def test_the_id_is_found_after_remarks(scheduler, output, expected):
    assert scheduler.job_id(output) == expected


def test_the_queue_is_read_and_a_failure_is_no_answer():
    table = "JobID  State   \n===============\n12     running \n13     user_hold\n"
    assert cobalt.queued(done(table)) == {"12", "13"} and cobalt.queued(done(code=1)) == set()
    jobs = "".join(
        f"Job Id: {name}\n    Job_Name = ffn-train\n    job_state = {state}\n    Variable_List = A=\\',\n\tB=\"c\\d\n\n"
        for name, state in (("1.s", "R"), ("2.s", "F"), ("3.s.domain.org", "Q"))
    )
    assert pbs.queued(done(jobs, "qstat: Unknown Job Id 4.s\n", 153)) == {"1.s", "3.s.domain.org"}
    assert slurm.queued(done("12\n13\n")) == {"12", "13"}
    for scheduler in SCHEDULERS.values():
        assert scheduler.queued(done("", "cannot connect to server x\n", 111)) is None


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, None),
        ({"HOROVOD_RANK": "2", "HOROVOD_SIZE": "4"}, LaunchedRank(2, 4)),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "8", "SLURM_PROCID": "0"}, LaunchedRank(1, 8)),
        ({"PMI_RANK": "3", "PMI_SIZE": "4"}, LaunchedRank(3, 4)),
        ({"PMIX_RANK": "3", "SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4"}, LaunchedRank(3, 4)),
        ({"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4"}, LaunchedRank(3, 4)),
        ({"SLURM_PROCID": "0"}, None),  # a batch script
        ({"ALPS_APP_PE": "5"}, LaunchedRank(5, None)),
        # mpirun starts one helper on each node with srun, and the helpers start the ranks
        (
            {"OMPI_COMM_WORLD_RANK": "9", "OMPI_COMM_WORLD_SIZE": "16"}
            | {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"},
            LaunchedRank(9, 16),
        ),
    ],
)
def test_a_process_learns_its_rank_from_its_launcher(monkeypatch, variables, expected):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert launched_rank() == expected
