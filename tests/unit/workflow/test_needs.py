"""Memory and time follow size, threads and network."""

from ffn.config import ModelConfig
from ffn.workflow.needs import flooding_minutes, fov_flops, memory_mb, minutes
from ffn.workflow.stages import STAGES


def test_measured_jobs_fit():
    """max_rss of FIB-25's jobs (250³, subvolumes of 149³, blocks of 128³)."""
    block = 128**3
    measured = {
        ("segment", 149**3, 1): 1459,
        ("agglomerate", block, 2): 784,
        ("membrane", block, 1): 301,
        ("partition", 0, 2): 285,
        ("reconcile", block, 1): 446,
        ("fill", block, 1): 431,
        ("evaluate", 170 * 250 * 250, 1): 886,
        ("export", 0, 2): 390,
    }
    for (stage, voxels, threads), megabytes in measured.items():
        assert megabytes < memory_mb(stage, voxels, threads) < 8 * megabytes, stage


def test_memory_grows_with_the_subvolume():
    assert memory_mb("segment", 512**3) - memory_mb("segment", 256**3) > 6000


def test_no_stage_is_free():
    for stage in STAGES:
        assert memory_mb(stage) >= 300 and minutes(stage, 0) >= 5


def test_time_is_shared_by_threads():
    assert minutes("export", 10**9, threads=8) < minutes("export", 10**9) / 4


def test_flooding_takes_the_time_of_its_convolutions():
    model = ModelConfig(depth=12, features=32, fov_size_zyx=(33, 33, 33), deltas_zyx=(8, 8, 8))
    assert 45e9 < fov_flops(model) < 50e9
    # Measured on two cores without AMX: 9 FOVs/s, so 149³ voxels take 12 minutes.
    assert 12 < flooding_minutes(149**3, model, threads=2) < 90
    deeper = model.model_copy(update={"depth": 24})
    assert flooding_minutes(512**3, deeper) > 1.9 * flooding_minutes(512**3, model)
