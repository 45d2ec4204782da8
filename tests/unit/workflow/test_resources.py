"""Memory and time of jobs, as Snakemake asks for them."""

from types import SimpleNamespace

from ffn.config import ReconcileConfig
from ffn.workflow.needs import memory_mb, minutes
from ffn.workflow.resources import block_voxels, by_attempt, duration, memory


def test_a_repeated_job_gets_twice_as_much():
    assert [by_attempt(1000)(None, threads=2, attempt=attempt) for attempt in (1, 2, 3)] == [1000, 2000, 4000]


def test_sizes_may_depend_on_wildcards():
    job = SimpleNamespace(size=10**9)
    assert duration("export", lambda wildcards: wildcards.size)(job, threads=2, attempt=1) == minutes(
        "export", 10**9, 2
    )


def test_processes_of_a_node_add_up():
    one, four = (memory("train", processes=number)(None, threads=1, attempt=1) for number in (1, 4))
    assert four == 4 * one == 4 * memory_mb("train")


def test_a_block_has_the_voxels_of_its_sides():
    assert block_voxels(ReconcileConfig(block_size_zyx=(2, 3, 4))) == 24
