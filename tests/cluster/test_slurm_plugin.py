"""What the profile `slurm` asks of Snakemake's plugin, on a real Slurm and jobs that do next to nothing."""

import re

import pytest

from .conftest import ClusterWorkflow
from .profiles import site_profile

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SNAKEFILE = """
from ffn.workflow import snakemake_patches
snakemake_patches.apply(workflow)

rule all:
    input:
        expand("member{i}", i=range(5)),

rule segment:
    output: "member{i}"
    resources: mem_mb=100, runtime=5
    shell:
        "if [ {wildcards.i} = 1 ] && [ ! -e tried ]; then touch tried; exit 1; fi; "
        "echo ${{SLURM_ARRAY_JOB_ID-}} {wildcards.i} > {output}"
"""


def test_subvolumes_are_tasks_of_job_arrays(cluster, tmp_path):
    """More are left than `jobs` allows at a time, for which the plugin by itself waits for ever; and one fails."""
    workflow = ClusterWorkflow(tmp_path, {"run": "arrays"}, cluster)
    workflow.snakefile = tmp_path / "Snakefile"
    workflow.snakefile.write_text(SNAKEFILE)
    site_profile(tmp_path, "slurm", **{"jobs": 2, "groups": {"all": "all"}, "slurm-array-jobs": "segment"})
    output = workflow.succeed()
    made = [(tmp_path / f"member{i}").read_text().split() for i in range(5)]
    assert [words[-1] for words in made] == [str(i) for i in range(5)]
    assert re.search(r"array job .* \d+,\d+", output)
