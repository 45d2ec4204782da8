"""Memory and time of jobs, as Snakemake asks for them."""

from types import SimpleNamespace

from ffn.config import PART_VOXELS, Agglomeration, ModelConfig
from ffn.inference.lanes import MOST_CANVASES
from ffn.workflow.needs import agglomerating_mb, flooding_mb, minutes
from ffn.workflow.resources import agglomeration_memory, by_attempt, duration, flooding_memory


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
    several = flooding_memory(model, 10**8, lambda wildcards: 3)
    assert several(job, threads=1, attempt=1) == flooding_mb(10**8, model, 3)


def test_agglomeration_depends_on_the_windows_at_once():
    model = ModelConfig()
    for canvases, gpus, expected in (("auto", 0, 1), ("auto", 2, MOST_CANVASES), (7, 2, 7)):
        for mirror, window in ((False, 81 * 83 * 85), (True, 113 * 115 * 117)):
            config = Agglomeration(window_radius_zyx=(40, 41, 42), canvases=canvases, mirror=mirror)
            asked = agglomeration_memory(model, config, gpus)(None, threads=1, attempt=1)
            assert asked == agglomerating_mb(PART_VOXELS, window, model, expected)
