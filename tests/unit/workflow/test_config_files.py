"""Configurations that give a key twice, or that Snakemake cannot read."""

import pytest

from ffn.errors import ConfigError
from ffn.workflow.config_files import check_configfiles, check_keys

from ...small_run import ROOT, fork_snakemake


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("volumes:\n  cube: {image: a.h5}\n  cube: {image: b.h5}\n", "line 3: 'cube' .* line 2"),
        ("train:\n  max_steps: 1\nmodel: {depth: 2}\ntrain: {}\n", "line 4: 'train' .* line 1"),
        ("volumes:\n  a:\n    masks:\n    - {path: a.h5,\n       path: b.h5}\n", "line 5: 'path' .* line 4"),
    ],
)
def test_a_key_that_is_given_twice_is_named_with_its_lines(text, lines, tmp_path):
    (tmp_path / "run.yaml").write_text(text)
    with pytest.raises(ConfigError, match=f"run.yaml: {lines}"):
        check_keys(tmp_path / "run.yaml")


@pytest.mark.parametrize("name", ["off", "12", "2024-01-02", "~", "0:60"])
def test_a_key_that_yaml_takes_for_a_value_is_named_as_it_is_written(name, tmp_path):
    (tmp_path / "run.yaml").write_text(f"volumes:\n  cube: {{}}\n  {name}: {{image: a.h5}}\n")
    with pytest.raises(ConfigError, match=f"line 3: .*{name}.*[Qq]uote"):
        check_keys(tmp_path / "run.yaml", of_run=True)
    check_keys(tmp_path / "run.yaml")  # of another workflow that uses this one


@pytest.mark.parametrize(
    "content",
    [
        b"a: &a {b: 1}\nc: {<<: *a, b: 2}\nd: [*a, *a]\n",
        b'{"a": 1,\n\t"b": 2}',  # JSON with tabs, which Snakemake reads
        b"",
    ],
)
def test_anything_else_is_left_to_the_reader(content, tmp_path):
    (tmp_path / "run.yaml").write_bytes(content)
    check_keys(tmp_path / "run.yaml")


@pytest.mark.parametrize(
    ("content", "found"),
    [
        ("# M\u00fcller\n".encode("latin-1"), "line 1 is not UTF-8"),
        (b"a: 1\nb: \xff\n", "line 2 is not UTF-8"),
        ("a: 1\n".encode("utf-16"), "line 1 is not UTF-8"),
        (None, "no such file"),
    ],
)
def test_what_snakemake_cannot_read_ends_it_with_one_line(content, found, tmp_path, monkeypatch):
    place = tmp_path / "run.yaml"
    if content is not None:
        place.write_bytes(content)
    monkeypatch.setattr("sys.argv", ["snakemake", "-n", "--config", "run=t", "--configfile", str(place), "-k"])
    with pytest.raises(SystemExit, match=f"run.yaml: .*{found}") as end:
        check_configfiles()
    assert len(str(end.value)) < 300


@pytest.mark.parametrize("profile", ["local", "theta", "polaris", "slurm", "slurm-generic"])
def test_profiles_check_the_configuration_before_snakemake_reads_it(profile, tmp_path):
    done = fork_snakemake(["-n", "--profile", str(ROOT / "profiles" / profile), "--configfile", "gone.yaml"], tmp_path)
    assert done.returncode == 1 and "gone.yaml: " in done.stdout and "Traceback" not in done.stdout


def test_a_folder_that_takes_no_files_is_named_before_snakemake_fails(tmp_path):
    (tmp_path / ".snakemake").touch()  # root may write to any folder, but not into a file
    given = {"--profile": "profiles/local", "--snakefile": "Snakefile", "--configfile": "config.yaml"}
    words = [word for option, file in given.items() for word in (option, str(ROOT / file))]
    done = fork_snakemake(["-n", *words], tmp_path)
    assert done.returncode == 1 and ".snakemake: " in done.stdout and "Traceback" not in done.stdout
