"""`ffn doctor` on a site that works, and on the same site with each fault that sites have."""

import json
import re
import shutil
import sys
from pathlib import Path

import pytest
import yaml

from ..workflow.conftest import ROOT
from .profiles import site_profile

ALLOCATION = ("salloc", "--quiet", "--nodes=2", "--ntasks=2")
# What a Horovod without MPI does: it says so, and every process that srun starts is a job of its own.
WITHOUT_MPI = """
import horovod.common.basics
horovod.common.basics.HorovodBasics.mpi_built = lambda self: False
os.environ["HOROVOD_CONTROLLER"] = "gloo"
"""


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
        command += ["--folder", str(folder or self.folder / "runs"), "--latency", "5", *options]
        done = self.cluster.run(*command, timeout=240, variables=self.variables)
        lines = re.findall(r"^(ok|FAIL|warn|skip) +(.+?)  +(.*)$", done.stdout, re.MULTILINE)
        assert lines, done.stdout + done.stderr
        return done.returncode, {name: (verdict, text) for verdict, name, text in lines}


@pytest.fixture
def doctor(idle, tmp_path):
    return Doctor(idle, tmp_path)


def failed(found):
    return {name for name, (verdict, _) in found.items() if verdict == "FAIL"}


@pytest.mark.slow
def test_a_site_that_works(doctor):
    code, found = doctor.run("--result", str(doctor.folder / "found.json"))
    assert (code, failed(found)) == (0, set()), found
    assert found["one job"] == ("ok", "Horovod joins 2 processes")
    assert "n1 n2" in found["processes"][1]
    assert {item["name"] for item in json.loads((doctor.folder / "found.json").read_text())} == found.keys()
    assert not (doctor.folder / "runs").exists()


@pytest.mark.slow
def test_a_job_of_its_own_looks_from_the_nodes(doctor):
    code, found = doctor.run("--submit", allocation=())
    assert (code, failed(found)) == (0, set()), found
    assert {"scheduler", "horovod", "processes", "shared folder", "one job"} <= found.keys()


@pytest.mark.slow
def test_no_launcher(doctor):
    tools = doctor.folder / "bin"
    tools.mkdir()
    for folder in ("/usr/sbin", "/usr/bin"):
        for tool in Path(folder).iterdir():
            if tool.name != "srun" and not (tools / tool.name).is_symlink():
                (tools / tool.name).symlink_to(tool)
    doctor.variables["PATH"] = f"{Path(sys.executable).parent}:{tools}"
    code, found = doctor.run(allocation=())
    assert (code, failed(found)) == (1, {"launcher"})
    assert found["launcher"][1].startswith("srun is not on PATH")


@pytest.mark.slow
def test_horovod_without_mpi_under_srun(doctor):
    (doctor.folder / "sitecustomize.py").write_text(WITHOUT_MPI)
    doctor.variables["PYTHONPATH"] = f"{doctor.folder}:{ROOT}"
    code, found = doctor.run(allocation=())
    assert (code, failed(found)) == (1, {"horovod"})
    assert found["horovod"][1].startswith("built without mpi, so srun would start single processes")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new", "name", "message"),
    [
        ("--ntasks={ranks}", "--ntasks=1 --nodes=1", "processes", "1 started on 1 nodes (n1), expected 2 on 2"),
        (
            "srun ",
            "env HOROVOD_CONTROLLER=gloo HOROVOD_CPU_OPERATIONS=gloo srun ",
            "one job",
            "2 jobs of 1 instead of one job of 2",
        ),
    ],
)
def test_wrong_task_count(old, new, name, message, doctor):
    doctor.change_launcher(old, new)
    if name == "processes":
        doctor.change_launcher("--nodes={nodes}", "")
    code, found = doctor.run()
    assert (code, failed(found)) == (1, {name})
    assert found[name][1].startswith(message)


@pytest.mark.slow
def test_scratch_that_is_not_shared(doctor):
    code, found = doctor.run(folder=doctor.cluster.scratch / "runs")
    assert (code, failed(found)) == (1, {"shared folder"})
    assert found["shared folder"][1].startswith("not visible on n1 n2")


@pytest.mark.slow
def test_another_python_on_a_node(doctor):
    environment = Path(sys.executable).parent.parent
    (metadata,) = environment.glob("lib/python3*/site-packages/tqdm-*.dist-info/METADATA")
    other = doctor.folder / "METADATA"
    other.write_text(re.sub(r"^Version: .*$", "Version: 0.0.1", metadata.read_text(), flags=re.MULTILINE))
    doctor.cluster.nodes["n2"].run("mount", "--bind", str(other), str(metadata))
    try:
        code, found = doctor.run()
    finally:
        doctor.cluster.nodes["n2"].run("umount", "--lazy", str(metadata))
    assert (code, failed(found)) == (1, {"python"})
    assert re.match(r"n[12] and n[12] differ in packages: tqdm", found["python"][1])


@pytest.mark.slow
def test_no_write_permission_on_a_node(doctor):
    runs = doctor.folder / "runs"
    runs.mkdir()
    node = doctor.cluster.nodes["n2"]
    node.run("mount", "--bind", str(runs), str(runs))
    node.run("mount", "-o", "remount,bind,ro", str(runs))
    try:
        code, found = doctor.run()
    finally:
        node.run("umount", "--lazy", str(runs))
    assert (code, failed(found)) == (1, {"writing"})
    assert found["writing"][1].startswith("fails on n2 (Read-only file system)")


@pytest.mark.slow
def test_no_write_permission_at_all(doctor):
    code, found = doctor.run(allocation=(), folder="/proc/runs")
    assert (code, failed(found)) == (1, {"folder"})
    assert shutil.which("srun") and "is not writable here" in found["folder"][1]
