import json

from ffn import __version__
from ffn.config import SegmentConfig
from ffn.geometry import Box
from ffn.provenance import REVISIONS, fingerprint, provenance, revision
from ffn.sampling.config import PartitionConfig
from ffn.workflow.stages import STAGES


def test_the_record_is_json_and_that_of_every_rerun():
    config = PartitionConfig(min_label_um3=7e-06)
    record = provenance("partition", config, labels="l.h5:labels", box=Box((0, 0, 0), (1, 2, 3)))
    assert json.loads(json.dumps(record)) == record
    assert (record["stage"], record["version"]) == ("partition", __version__)
    assert record["config"].keys() == PartitionConfig.model_fields.keys() and record["config"]["min_label_um3"] == 7e-6
    assert record["inputs"] == {"labels": "l.h5:labels", "box": "0:1,0:2,0:3"}
    inputs = {"rng_seed": "1"}
    assert provenance("synth", rng_seed=1) == {"stage": "synth", "version": __version__, "config": {}, "inputs": inputs}


def test_a_fingerprint_knows_the_revision_of_what_exists(monkeypatch):
    one = fingerprint("segment", SegmentConfig(checkpoint_seconds=9), labels="l.h5")
    monkeypatch.setattr("ffn.provenance.__version__", "9.9.9")
    assert fingerprint("segment", SegmentConfig(), labels="l.h5") == one == json.loads(json.dumps(one))
    assert fingerprint("segment", SegmentConfig(min_segment_um3=7e-06), labels="l.h5") != one
    monkeypatch.setitem(REVISIONS, "segment", revision("segment") + 1)
    assert fingerprint("segment", SegmentConfig(), labels="l.h5") != one
    assert REVISIONS.keys() <= {*STAGES, "study"}


def test_what_is_written_has_no_secrets_and_other_signatures_resume():
    made = [
        make("ingest", source=f"https://me:pass{n}@host/a.zarr?X-Amz-Signature=sig{n}&v=2")
        for n in range(2)
        for make in (provenance, fingerprint)
    ]
    assert made[1] == made[3]
    assert not any(secret in str(made) for secret in ("me:", "pass0", "sig0"))
    assert "host/a.zarr" in str(made) and "v=2" in str(made)
