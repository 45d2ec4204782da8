"""`ffn doctor` on a site that works, and on the same site with each fault that sites have."""

import re
import sys

import pytest
import yaml

from ..small_run import ROOT
from .profiles import site_profile

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

ALLOCATION = ("salloc", "--quiet", "--nodes=2", "--ntasks=2")


class Doctor:
    """The command on the login node, in an allocation of two nodes, with a copy of the profile `slurm`."""

    def __init__(self, cluster, folder):
        self.cluster = cluster
        self.folder = folder
        self.profile = site_profile(folder, "slurm")
        self.variables = {"PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}

    def change_launcher(self, old, new):
        path = self.profile / "config.yaml"
        values = yaml.safe_load(path.read_text())
        launcher = values["set-resources"]["train"]["launcher"]
        assert old in launcher
        values["set-resources"]["train"]["launcher"] = launcher.replace(old, new)
        path.write_text(yaml.safe_dump(values))

    def run(self, *options, allocation=ALLOCATION, folder=None):
        """Return the exit code and the verdicts by name."""
        command = [*allocation, sys.executable, "-m", "ffn", "doctor", "--profile", str(self.profile)]
        command += ["--folder", str(folder or self.folder / "runs"), *options]
        done = self.cluster.run(*command, variables=self.variables)
        assert findings(done.stdout), done.stdout + done.stderr
        return done.returncode, findings(done.stdout)


def findings(table):
    """Verdict and text by name."""
    lines = re.findall(r"^(ok|FAIL|warn|skip) +(.+?)  +(.*)$", table, re.MULTILINE)
    return {name: (verdict, text) for verdict, name, text in lines}


@pytest.fixture
def doctor(idle, tmp_path):
    return Doctor(idle, tmp_path)


def failed(found):
    return {name for name, (verdict, _) in found.items() if verdict == "FAIL"}


def test_a_site_that_works(doctor):
    code, found = doctor.run("--collective", "mpi")
    assert (code, failed(found)) == (0, set()), found
    assert {"scheduler", "processes", "shared folder", "one job"} <= found.keys()
    assert found["exchange"][0] == "ok" and "join by mpi4py" in found["one job"][1]
    assert "n1 n2" in found["processes"][1]


def test_a_launcher_that_starts_too_few_and_a_folder_that_is_not_shared(doctor):
    doctor.change_launcher("--ntasks={ranks}", "--ntasks=1 --nodes=1")
    doctor.change_launcher("--nodes={nodes}", "")
    code, found = doctor.run(folder=doctor.cluster.scratch / "runs")
    assert (code, failed(found)) == (1, {"processes", "shared folder"})
    assert "(n1), " in found["processes"][1] and "2 on 2" in found["processes"][1]
    assert found["shared folder"][1].startswith("n1: ")
