"""The software of jobs from a conda environment or a container, with stand-ins for conda and Apptainer."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ..small_run import ROOT, SMALL_RUN, Workflow, shown

CONDA = """#!/bin/bash
case "$*" in
    "info --json") echo '{info}' ;;
    --version) echo "conda 24.7.1" ;;
    config*) echo '{{"get": {{"channel_priority": "strict"}}}}' ;;
    *" create "*) prefix="${{@: -1}}"; mkdir -p "$prefix/bin"; cp {python} "$prefix/bin/python" ;;
esac
"""
PYTHON = """#!/bin/sh
echo "$PWD: $*" >> {seen}
"""
APPTAINER = """#!/bin/bash
if [[ $1 == --version ]]; then echo "apptainer version 1.3.0"; exit; fi
echo "$(pwd): ${{@: -4:1}}: ${{@: -1}}" >> {seen}
exec "${{@: -3}}"
"""


def script(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def run_with(workflow, programs, *arguments):
    """Run Snakemake with these programs first in the path."""
    shown(workflow.fork(*arguments, PATH=f"{programs}:{workflow.environment()['PATH']}"))


@pytest.mark.slow
def test_a_conda_environment_is_completed_from_the_repository_wherever_the_run_is(tmp_path):
    """Snakemake runs the script as a copy beside the environment, in the folder of the run."""
    seen, repository, base = tmp_path / "seen", tmp_path / "repository", tmp_path / "conda"
    script(repository / "envs/build_horovod.sh", "#!/bin/sh\necho horovod.whl\n")
    script(repository / "envs/build_kernels.sh", f'#!/bin/sh\necho "$PWD: kernels $1" >> {seen}\n')
    python = script(tmp_path / "python", PYTHON.format(seen=seen))
    info = json.dumps({"conda_prefix": str(base), "platform": "linux-64"})
    script(base / "bin/conda", CONDA.format(info=info, python=python))
    # the real repository's set-up would take minutes
    activate = f'export CONDA_PREFIX=$1; echo "$FFN_REPOSITORY" >> {seen}; FFN_REPOSITORY={repository}\n'
    script(base / "bin/activate", activate)
    workflow = Workflow(tmp_path / "run", SMALL_RUN)
    options = ["--software-deployment-method", "conda", "--conda-create-envs-only"]
    run_with(workflow, base / "bin", "synth_all", *options)
    (prefix,) = [path.parent for path in workflow.folder.glob(".snakemake/conda/*/bin")]
    pip = f"{repository}: -m pip install --no-deps"
    done = [f"{pip} horovod.whl", f"{pip} --no-build-isolation --editable ."]
    assert seen.read_text().splitlines() == [str(ROOT), *done, f"{repository}: kernels {prefix}/bin/python"]


@pytest.mark.slow
def test_jobs_run_in_the_container_of_the_configuration(tmp_path):
    seen = tmp_path / "seen"
    script(tmp_path / "bin/apptainer", APPTAINER.format(seen=seen))
    workflow = Workflow(tmp_path / "run", SMALL_RUN)
    image = tmp_path / "ffn.sif"
    image.touch()
    options = ["--software-deployment-method", "apptainer", "--config", f"container={image}"]
    target = "results/small/volumes/phantom/raw.zarr/zarr.json"
    run_with(workflow, tmp_path / "bin", target, *options)
    (line,) = seen.read_text().splitlines()
    assert line.startswith(f"{workflow.folder}: {image}: ") and " ffn synth " in line
    assert (workflow.folder / target).is_file()


INITIAL = Path("/usr/share/modules/init/bash")
COMMAND = """#!/bin/sh
echo "$LOADEDMODULES" >> {seen}
exec {ffn} "$@"
"""


@pytest.mark.slow
def test_the_modules_of_the_configuration_and_only_they_are_loaded_before_a_command(tmp_path):
    if not INITIAL.is_file():
        pytest.skip("no environment modules here; Debian's package is called environment-modules")
    seen, programs, modules = tmp_path / "seen", tmp_path / "bin", tmp_path / "modules"
    programs.mkdir()
    command = programs / "ffn"
    command.write_text(COMMAND.format(seen=seen, ffn=Path(sys.executable).with_name("ffn")))
    command.chmod(0o755)
    for name, content in (("ffn-site/1.0", f"prepend-path PATH {programs}"), ("login/2", "setenv SITE login")):
        (modules / name).parent.mkdir(parents=True)
        (modules / name).write_text(f"#%Module1.0\n{content}\n")
    workflow = Workflow(tmp_path / "run", SMALL_RUN)
    target = workflow.results.relative_to(workflow.folder) / "volumes/phantom/raw.zarr/zarr.json"
    snakemake = workflow.command(
        str(target), "--software-deployment-method", "env-modules", "--config", "modules=ffn-site/1.0"
    )
    shell = f'. {INITIAL} && module load login && exec "$@"'
    run = subprocess.run(
        ["bash", "-c", shell, "bash", *snakemake],
        env=workflow.environment() | {"MODULEPATH": str(modules)},
        cwd=workflow.folder,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert (workflow.folder / target).is_file()
    assert seen.read_text() == "ffn-site/1.0\n"
