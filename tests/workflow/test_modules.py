"""Environment modules, as sites have them: real ones, of Debian's package."""

import subprocess
import sys
from pathlib import Path

import pytest

from ..small_run import SMALL_RUN, Workflow

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
