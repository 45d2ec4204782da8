# Neuroglancer precomputed volumes, meshes and state.


rule export:
    input:
        image=f"{VOLUME}/raw.h5",
        segmentation=FINAL,
        truth=lambda wildcards: [f"{OUT}/volumes/{wildcards.volume}/labels.h5"]
        * (wildcards.volume in SHOWN_TRUTH),
    output:
        state=ensure(f"{OUT}/precomputed/{{volume}}/neuroglancer.json", non_empty=True),
    log:
        f"{OUT}/logs/export/{{volume}}.log",
    benchmark:
        f"{OUT}/benchmarks/export.{{volume}}.tsv"
    conda:
        "../envs/ffn.yaml"
    threads: CORES
    resources:
        mem_mb=by_attempt(4000),
        runtime=by_attempt(120),
    params:
        truth=lambda wildcards, input: (
            f"--truth {input.truth[0]}:labels" if input.truth else ""
        ),
        box=lambda wildcards: PLACES[wildcards.volume].segment_box,
        folder=subpath(output.state, parent=True),
        flags=flags(RUN.export),
        version=__version__,
    shell:
        "ffn export --image {input.image}:raw --segmentation {input.segmentation}:segmentation {params.truth} "
        "--box {params.box} {params.flags} --out {params.folder} > {log} 2>&1"
