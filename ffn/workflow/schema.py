"""The JSON schema of configurations, with which editors complete and check them; printed to config/schema.json."""

from __future__ import annotations

import json

from ffn.workflow.run import RunConfig

DRAFT = "https://json-schema.org/draft/2020-12/schema"
SITE = {  # keys that are not part of the run
    "modules": {"type": ["string", "null"], "description": "environment modules of the site"},
    "container": {"type": ["string", "null"], "description": "image with the software"},
}


def schema() -> str:
    """Return the schema that follows from the models, as the file has it.

    Relations between options and the existence of files are not in it: ``snakemake -n`` checks them.
    """
    content = RunConfig.model_json_schema()
    content["properties"] = content["properties"] | SITE
    return json.dumps({"$schema": DRAFT, **content}, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    print(schema(), end="")
