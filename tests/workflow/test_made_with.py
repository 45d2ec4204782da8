"""What the report of a whole run says of a configuration that was changed afterwards."""

import shutil

import pytest
import yaml

from ffn.config import Section
from ffn.report.made_with import outdated, read_made_with
from ffn.workflow.paths import RunPaths
from ffn.workflow.recorded import WORKERS
from ffn.workflow.run import RunConfig, load_run

from ..small_run import SMALL_RUN

NOT_RUN = ("consensus", "select", "study")
NOT_RECORDED = ("agglomerate.enabled", "agglomerate.job_size_zyx", "subvolumes.size_zyx", "subvolumes.overlap_zyx")
PRODUCT = "train.num_workers × virtual_workers"


def is_section(field) -> bool:
    return isinstance(field.annotation, type) and issubclass(field.annotation, Section)


@pytest.fixture
def results(finished, tmp_path):
    """A copy of what the run made."""
    shutil.copytree(finished.results, tmp_path / "small")
    return tmp_path / "small"


def configure(results, **sections):
    """Write the configuration as the workflow does when it starts."""
    merged = {**SMALL_RUN, **{name: {**SMALL_RUN.get(name, {}), **value} for name, value in sections.items()}}
    (results / "config.yaml").write_text(yaml.safe_dump(load_run(merged).as_written()))


def differing_keys(results) -> set[str]:
    return {difference.key for one in read_made_with(results) for difference in one.differences}


def test_every_stage_records_what_the_configuration_says(results):
    """What is compared is what the rules pass on: nothing differs in a run whose configuration stayed the same."""
    made = read_made_with(results)
    assert outdated(made) == "" and differing_keys(results) == set()
    stages = {one.stage for one in made}
    assert stages >= {"synth", "membrane", "partition", "coordinates", "records", "train", "segment", "reconcile"}
    assert stages >= {"agglomerate", "merge", "sweep", "fill", "skeletonize", "evaluate", "export"}


def test_a_changed_configuration_does_not_pass_for_the_one_that_made_the_files(results):
    volume = {**SMALL_RUN["volumes"]["phantom"], "train_box": "0:38,0:56,0:72"}
    configure(results, volumes={"phantom": volume}, train={"max_steps": 140}, segment={"move_threshold": 0.8})
    made = {one.stage: one for one in read_made_with(results) if not one.is_as_configured}
    assert set(made) == {"membrane", "partition", "coordinates", "train", "segment", "agglomerate"}
    box = "volumes.phantom.train_box: made with 0:40,0:56,0:72; config.yaml says 0:38,0:56,0:72"
    assert made["membrane"].statements == made["coordinates"].statements == [box]
    assert made["train"].statements == ["train.max_steps: made with 120; config.yaml says 140"]
    assert made["segment"].statements == ["segment.move_threshold: made with 0.9; config.yaml says 0.8"]
    assert len(made["segment"].files) == 4


def other(value):
    """Return another value of the same type; nobody checks what it means."""
    match value:
        case bool():
            return not value
        case int() | float():
            return value + 1
        case tuple():
            return value[:-1] if value else ("z",)
        case _:
            return "other"


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
@pytest.mark.parametrize(
    "section",
    [name for name, field in RunConfig.model_fields.items() if is_section(field) and name not in NOT_RUN],
)
def test_every_option_of_a_stage_is_compared(section, results, monkeypatch):
    config = RunPaths(results).read_config()
    options = getattr(config, section)
    marks = {name: info.json_schema_extra for name, info in type(options).model_fields.items()}
    names = {name for name, mark in marks.items() if not mark and f"{section}.{name}" not in NOT_RECORDED}
    changed = options.model_copy(update={name: other(getattr(options, name)) for name in names})
    monkeypatch.setattr(RunPaths, "read_config", lambda paths: config.model_copy(update={section: changed}))
    keys = {PRODUCT if f"{section}.{name}" in WORKERS else f"{section}.{name}" for name in names}
    assert differing_keys(results) >= keys
