# Images and labels of any supported format, converted to the project's format.


rule ingest_blocks:
    output:
        record=ensure(PATHS.job("ingest", output="image"), non_empty=True),
    log:
        PATHS.log("ingest_blocks", "{volume}", "{job}"),
    benchmark:
        PATHS.benchmark("ingest_blocks", "{volume}", "{job}")
    wildcard_constraints:
        volume=any_of(PIPELINE.foreign),
    threads: 1
    resources:
        mem_mb=memory("ingest"),
        runtime=duration("ingest", PIPELINE.ingested_voxels("image")),
    params:
        source=lambda wildcards: arguments.source(PIPELINE, wildcards.volume, "image"),
        store=PATHS.of("ingest", "image"),
    shell:
        "ffn ingest {params.source} --kind image --job {wildcards.job} --job-record {output.record} "
        "--out {params.store} > {log} 2>&1"


rule ingest:
    input:
        blocks=lambda wildcards: PIPELINE.job_records("ingest", wildcards.volume, "image"),
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
        mem_mb=memory("ingest"),
        runtime=duration("ingest", PIPELINE.ingested_voxels("image")),
    params:
        source=lambda wildcards: arguments.source(PIPELINE, wildcards.volume, "image"),
        job=PIPELINE.job_option("ingest", "image"),
    shell:
        "ffn ingest {params.source} --kind image {params.job} --out {output.image} > {log} 2>&1"


rule ingest_labels_blocks:
    output:
        record=ensure(PATHS.job("ingest", output="labels"), non_empty=True),
    log:
        PATHS.log("ingest_labels_blocks", "{volume}", "{job}"),
    benchmark:
        PATHS.benchmark("ingest_labels_blocks", "{volume}", "{job}")
    wildcard_constraints:
        volume=any_of(PIPELINE.foreign_labelled),
    threads: 1
    resources:
        mem_mb=memory("ingest"),
        runtime=duration("ingest", PIPELINE.ingested_voxels("labels")),
    params:
        source=lambda wildcards: arguments.source(PIPELINE, wildcards.volume, "labels"),
        store=PATHS.of("ingest", "labels"),
    shell:
        "ffn ingest {params.source} --kind labels --job {wildcards.job} --job-record {output.record} "
        "--out {params.store} > {log} 2>&1"


rule ingest_labels:
    input:
        blocks=lambda wildcards: PIPELINE.job_records("ingest", wildcards.volume, "labels"),
    output:
        labels=ensure(LABELS, non_empty=True),
    log:
        PATHS.log("ingest_labels", "{volume}"),
    benchmark:
        PATHS.benchmark("ingest_labels", "{volume}")
    wildcard_constraints:
        volume=any_of(PIPELINE.foreign_labelled),
    threads: 1
    resources:
        mem_mb=memory("ingest"),
        runtime=duration("ingest", PIPELINE.ingested_voxels("labels")),
    params:
        source=lambda wildcards: arguments.source(PIPELINE, wildcards.volume, "labels"),
        job=PIPELINE.job_option("ingest", "labels"),
    shell:
        "ffn ingest {params.source} --kind labels {params.job} --out {output.labels} > {log} 2>&1"
