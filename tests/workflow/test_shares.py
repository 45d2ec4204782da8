"""A large volume that several jobs share: a finished run has nothing to do, and a change repeats what depends on it."""

from ..small_run import SMALL_RUN, shown
from .stubbed import Stubbed, jobs_of

CONFIG = {
    **SMALL_RUN,
    "volumes": {"large": {"synthetic": {"shape_zyx": [300, 300, 600]}}},
    "subvolumes": {"size_zyx": [300, 300, 150], "overlap_zyx": [14, 14, 14]},
    "workflow": {"max_jobs_per_stage": 2},
    "agglomerate": {"enabled": True, "job_size_zyx": [100, 300, 600]},
    "fill": {"max_distance_nm": 50},
}
TARGETS = ("fill_all", "sweep_all", "export_all", "evaluate_all")


def test_a_finished_run_has_nothing_to_do_and_a_change_repeats_what_depends_on_it(tmp_path):
    run = Stubbed(tmp_path, CONFIG, TARGETS)
    made = jobs_of(shown(run.snakemake()))
    assert {"reconcile_tiling", "reconcile_match", "merge_mapping", "fill_blocks", "export_coarse"} <= made
    assert not run.planned(CONFIG)
    after = run.planned({**CONFIG, "fill": {"max_distance_nm": 60}})
    assert {"fill_blocks", "fill", "export_blocks", "evaluate_blocks", "evaluate"} <= after
    assert not {"merge", "merge_mapping", "reconcile", "sweep_blocks", "segment_list"} & after
    after = run.planned({**CONFIG, "merge": {"threshold": 0.9}})
    assert {"merge_mapping", "merge_blocks", "merge", "fill"} <= after and not {"reconcile", "sweep"} & after
