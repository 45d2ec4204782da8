# Images and labels of any supported format, converted to the project's format.


rule ingest:
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
        runtime=duration("ingest", PIPELINE.voxels("image")),
    params:
        source=lambda wildcards: arguments.source(PIPELINE, wildcards.volume, "image"),
    shell:
        "ffn ingest {params.source} --kind image --out {output.image} > {log} 2>&1"


rule ingest_labels:
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
        runtime=duration("ingest", PIPELINE.voxels("labels")),
    params:
        source=lambda wildcards: arguments.source(PIPELINE, wildcards.volume, "labels"),
    shell:
        "ffn ingest {params.source} --kind labels --out {output.labels} > {log} 2>&1"
