"""Every launcher's variables are read, and its command line is written."""

import pytest

from ffn.machine.launchers import RANK_VARIABLES, LaunchedRank, launched_rank


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    for names in RANK_VARIABLES:
        for name in filter(None, names):
            monkeypatch.delenv(name, raising=False)


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
