import numpy as np
import pytest

from ffn.errors import RecordError
from ffn.sampling.balance import draw, plan_records
from ffn.sampling.config import RecordsConfig

CONFIG = RecordsConfig(num_shards=4, max_records=None)


def test_any_part_of_the_sequence_can_be_drawn_alone(paths):
    plan = plan_records(paths, CONFIG, 5)
    whole = draw(plan, 0, plan.num_records)
    for some, every in zip(draw(plan, 700, 1100), whole, strict=True):
        np.testing.assert_array_equal(some, every[700:1100])


def test_a_heavy_volume_uses_all_its_voxels_before_one_repeats(paths):
    plan = plan_records(paths, CONFIG, 5, {"a": 2.5})
    assert plan.slots(3).tolist() == [18, 20]  # 2.5 x 7 for the heavy volume
    partitions, voxels = draw(plan, 0, plan.num_records)
    times = np.bincount(voxels[partitions == 3], minlength=27)
    assert np.ptp(times[:7]) <= 2 and np.ptp(times[7:]) <= 1


@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan"), float("inf")])
def test_a_weight_that_is_not_positive_is_refused(paths, weight):
    with pytest.raises(RecordError, match="--weight: .*a="):
        plan_records(paths, CONFIG, 5, {"a": weight})


def test_a_negligible_weight_and_an_unknown_volume_are_refused(paths):
    with pytest.raises(RecordError, match="--weight: .* 1e-09"):
        plan_records(paths, CONFIG, 5, {"a": 1e-9})
    with pytest.raises(RecordError, match="--weight: .*c="):
        plan_records(paths, CONFIG, 5, {"c": 1.0})


def test_too_few_records_are_refused(paths):
    with pytest.raises(RecordError, match="--max-records: 2"):
        plan_records(paths, RecordsConfig(max_records=2), 5)
    with pytest.raises(RecordError, match="--num-shards: 16"):
        plan_records(paths, RecordsConfig(max_records=11), 5)
