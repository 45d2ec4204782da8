"""Memory and time of jobs, as Snakemake asks for them."""

from types import SimpleNamespace

from ffn.config import ModelConfig, ReconcileConfig
from ffn.workflow.needs import flooding_mb, minutes
from ffn.workflow.resources import block_voxels, by_attempt, duration, flooding_memory


def test_a_repeated_job_gets_twice_as_much():
    assert [by_attempt(1000)(None, threads=2, attempt=attempt) for attempt in (1, 2, 3)] == [1000, 2000, 4000]


def test_sizes_may_depend_on_wildcards():
    job = SimpleNamespace(size=10**9)
    assert duration("export", lambda wildcards: wildcards.size)(job, threads=2, attempt=1) == minutes(
        "export", 10**9, 2
    )


def test_flood_filling_depends_on_the_subvolume():
    job, model = SimpleNamespace(size=10**8), ModelConfig()
    asked = flooding_memory(model, lambda wildcards: wildcards.size)
    assert asked(job, threads=1, attempt=2) == 2 * flooding_mb(10**8, model)


def test_a_block_has_the_voxels_of_its_sides():
    assert block_voxels(ReconcileConfig(block_size_zyx=(2, 3, 4))) == 24
