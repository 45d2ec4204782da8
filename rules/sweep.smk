# Scores of the merge graph at every threshold, for the report.


rule sweep:
    input:
        segmentation=BASE,
        graphs=lambda wildcards: GRAPHS[wildcards.volume],
        truth=f"{VOLUME}/labels.h5",
    output:
        table=ensure(f"{OUT}/agglomeration/{{volume}}/sweep.json", non_empty=True),
    log:
        f"{OUT}/logs/sweep/{{volume}}.log",
    benchmark:
        f"{OUT}/benchmarks/sweep.{{volume}}.tsv"
    conda:
        "../envs/ffn.yaml"
    envmodules:
        *MODULES,
    threads: 1
    resources:
        mem_mb=memory("sweep", block(RUN.sweep)),
        runtime=duration("sweep", voxels_in("evaluate_box")),
    params:
        box=lambda wildcards: PLACES[wildcards.volume].evaluate_box,
        flags=flags(RUN.sweep),
        version=__version__,
    shell:
        "ffn sweep {input.graphs} --segmentation {input.segmentation}:segmentation --truth {input.truth}:labels "
        "--box {params.box} {params.flags} --out {output.table} > {log} 2>&1"
