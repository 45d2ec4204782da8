"""The queue and the walltime of a job follow from the queues that the profile lists."""

import pytest
import yaml

from ffn.cluster import batch
from ffn.cluster.job_script import in_queue, read_queues
from ffn.cluster.site import ROOT
from ffn.errors import ClusterError
from ffn.machine.schedulers import BatchJob


def chosen(profile, nodes, minutes, queue=None):
    """Queue and walltime of a job with the queues of a profile."""
    values = yaml.safe_load((ROOT / "profiles" / profile / "config.yaml").read_text())
    site = {**values["default-resources"], **({"queue": queue} if queue else {})}
    job = in_queue(BatchJob("ffn-train", nodes, 1, 0, minutes, is_mpi=True, site=site))
    return job.site["queue"], job.minutes


@pytest.mark.parametrize(
    ("profile", "nodes", "minutes", "expected"),
    [
        ("theta", 1, 30, ("debug-cache-quad", 30)),
        ("theta", 8, 60, ("debug-cache-quad", 60)),
        ("theta", 9, 10, ("default", 30)),
        ("theta", 2, 360, ("default", 180)),
        ("theta", 128, 360, ("default", 180)),
        ("theta", 256, 360, ("default", 360)),
        ("polaris", 1, 1, ("preemptable", 5)),
        ("polaris", 10, 1440, ("preemptable", 1440)),
        ("polaris", 11, 1440, ("prod", 180)),
        ("polaris", 25, 1440, ("prod", 360)),
        ("polaris", 100, 1440, ("prod", 1440)),
    ],
)
def test_a_job_gets_a_queue_that_takes_its_nodes_and_no_more_time_than_that_allows(profile, nodes, minutes, expected):
    assert chosen(profile, nodes, minutes) == expected


def test_a_named_queue_is_taken_for_the_jobs_that_it_takes():
    """FFN_QUEUE=prod also reaches the jobs of one node, which `prod` refuses."""
    assert chosen("polaris", 10, 1440, "prod") == ("prod", 180)
    assert chosen("polaris", 1, 30, "prod") == ("preemptable", 30)
    assert chosen("theta", 2, 360, "debug-cache-quad") == ("debug-cache-quad", 60)
    assert chosen("polaris", 2, 600, "capacity") == ("capacity", 600), "of which the profile knows nothing"


def test_a_job_that_no_queue_takes_is_one_line(job_script, capsys):
    resources = {"runtime": 9, "nodes": 20, "queues": "debug 1-8 5-60"}
    assert batch.main(["submit", "cobalt", str(job_script(rule="train", resources=resources))]) == 2
    assert "ffn-train: has 20" in capsys.readouterr().err


def test_a_row_that_cannot_be_read_is_named():
    with pytest.raises(ClusterError, match="queues: .*prod 10"):
        read_queues("debug 1-8 5-60, prod 10 180")
