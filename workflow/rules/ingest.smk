# Images and labels of any supported format, converted to the project's format.


rule ingest:
    input:
        blocks=of("ingest", "files"),
    output:
        image=ensure(IMAGE, non_empty=True),
    log:
        PATHS.log("ingest", "{volume}"),
    benchmark:
        PATHS.benchmark("ingest", "{volume}")
    wildcard_constraints:
        volume=any_of(PIPELINE.foreign),
    threads: 1
    resources:
        **needs("ingest"),
    params:
        source=lambda wildcards: arguments.source(PIPELINE, wildcards.volume, "image"),
        kind="image",
        job="",
        out=lambda wildcards, output: output[0],
    shell:
        "ffn ingest {params.source} --kind {params.kind} {params.job} --out {params.out} > {log} 2>&1"


use rule ingest as ingest_labels with:
    input:
        blocks=of("ingest_labels", "files"),
    output:
        labels=ensure(LABELS, non_empty=True),
    log:
        PATHS.log("ingest_labels", "{volume}"),
    benchmark:
        PATHS.benchmark("ingest_labels", "{volume}")
    wildcard_constraints:
        volume=any_of(PIPELINE.foreign_labelled),
    resources:
        **needs("ingest_labels"),
    params:
        source=lambda wildcards: arguments.source(PIPELINE, wildcards.volume, "labels"),
        kind="labels",
        job="",


# Parts of the blocks of a large volume.
use rule ingest as ingest_blocks with:
    input:
        [],
    output:
        record=ensure(PATHS.job("ingest", output="image"), non_empty=True),
    log:
        PATHS.log("ingest_blocks", "{volume}", "{step_name}-{job}"),
    benchmark:
        PATHS.benchmark("ingest_blocks", "{volume}", "{step_name}-{job}")
    params:
        job=arguments.job,
        out=PATHS.of("ingest", "image"),


use rule ingest_labels as ingest_labels_blocks with:
    input:
        [],
    output:
        record=ensure(PATHS.job("ingest", output="labels"), non_empty=True),
    log:
        PATHS.log("ingest_labels_blocks", "{volume}", "{step_name}-{job}"),
    benchmark:
        PATHS.benchmark("ingest_labels_blocks", "{volume}", "{step_name}-{job}")
    params:
        job=arguments.job,
        out=PATHS.of("ingest", "labels"),
