"""Lists of blocks that jobs share."""

from collections import Counter

import pytest

from ffn.geometry import Box
from ffn.io.block_lists import BlockList, BlockLists
from ffn.io.blocks import Job


@pytest.mark.parametrize("lengths", [(1, 1, 1), (7, 1, 9, 2)])
def test_jobs_share_all_blocks_and_short_lists_go_to_different_jobs(tmp_path, lengths):
    done, of_job = Counter(), Counter()

    def work(block):
        done[block.start] += 1
        of_job[job] += 1
        return {}

    lists = [
        BlockList(f"list-{n}", list(Box((n, 0, 0), (n + 1, 1, length)).blocks((1, 1, 1))), work)
        for n, length in enumerate(lengths)
    ]
    for job in range(1, 5):
        BlockLists(tmp_path, {}).work_on(lists, Job(job, 4, finishes=False))
    assert sorted(done.values()) == [1] * sum(lengths)
    assert max(of_job.values()) <= -(-sum(lengths) // 4) + 1
