# Images and labels of any format, or a synthetic volume, in the project's own format.


rule ingest:
    output:
        image=ensure(f"{VOLUME}/raw.h5", non_empty=True),
    log:
        f"{OUT}/logs/ingest/{{volume}}.log",
    benchmark:
        f"{OUT}/benchmarks/ingest.{{volume}}.tsv"
    wildcard_constraints:
        volume=any_of(name for name in RUN.volumes if name not in SYNTHETIC),
    conda:
        "../envs/ffn.yaml"
    envmodules:
        *MODULES,
    threads: 1
    resources:
        mem_mb=memory("ingest"),
        runtime=duration("ingest", voxels_in("image")),
    params:
        source=lambda wildcards: source_of(wildcards.volume, "image"),
        version=__version__,
    shell:
        "ffn ingest {params.source} --kind image --out {output.image}:raw > {log} 2>&1"


rule ingest_labels:
    output:
        labels=ensure(f"{VOLUME}/labels.h5", non_empty=True),
    log:
        f"{OUT}/logs/ingest_labels/{{volume}}.log",
    benchmark:
        f"{OUT}/benchmarks/ingest_labels.{{volume}}.tsv"
    wildcard_constraints:
        volume=any_of(name for name in LABELLED if name not in SYNTHETIC),
    conda:
        "../envs/ffn.yaml"
    envmodules:
        *MODULES,
    threads: 1
    resources:
        mem_mb=memory("ingest"),
        runtime=duration("ingest", voxels_in("labels")),
    params:
        source=lambda wildcards: source_of(wildcards.volume, "labels"),
        version=__version__,
    shell:
        "ffn ingest {params.source} --kind labels --out {output.labels}:labels > {log} 2>&1"


rule synth:
    output:
        image=ensure(f"{VOLUME}/raw.h5", non_empty=True),
        labels=ensure(f"{VOLUME}/labels.h5", non_empty=True),
    log:
        f"{OUT}/logs/synth/{{volume}}.log",
    benchmark:
        f"{OUT}/benchmarks/synth.{{volume}}.tsv"
    wildcard_constraints:
        volume=any_of(SYNTHETIC),
    conda:
        "../envs/ffn.yaml"
    envmodules:
        *MODULES,
    threads: 1
    resources:
        mem_mb=memory("synth", voxels_in("image")),
        runtime=duration("synth", voxels_in("image")),
    params:
        flags=lambda wildcards: flags(RUN.volumes[wildcards.volume].synthetic),
        seed=SEED,
        version=__version__,
    shell:
        "ffn synth {params.flags} --rng-seed {params.seed} "
        "--out-image {output.image}:raw --out-labels {output.labels}:labels > {log} 2>&1"
