import json

from ffn import __version__
from ffn.config import PartitionConfig
from ffn.geometry import Box
from ffn.provenance import provenance


def test_the_record_is_json_with_the_whole_section_and_all_inputs():
    config = PartitionConfig(min_size=7)
    record = provenance("partition", config, labels="l.h5:labels", box=Box((0, 0, 0), (1, 2, 3)))
    assert json.loads(json.dumps(record)) == record
    assert (record["stage"], record["version"]) == ("partition", __version__)
    assert record["config"].keys() == PartitionConfig.model_fields.keys() and record["config"]["min_size"] == 7
    assert record["inputs"] == {"labels": "l.h5:labels", "box": "0:1,0:2,0:3"}


def test_the_same_call_gives_the_same_record():
    assert provenance("synth", rng_seed=1) == provenance("synth", rng_seed=1)
    assert provenance("synth")["config"] == provenance("synth")["inputs"] == {}
