# Base segments joined where the merge graph says so; the base segmentation stays.


rule merge:
    input:
        segmentation=BASE,
        graphs=lambda wildcards: GRAPHS[wildcards.volume],
    output:
        segmentation=ensure(
            f"{OUT}/segmentation/{{volume}}/agglomerated.h5", non_empty=True
        ),
        mapping=ensure(f"{OUT}/agglomeration/{{volume}}/mapping.csv", non_empty=True),
    log:
        f"{OUT}/logs/merge/{{volume}}.log",
    benchmark:
        f"{OUT}/benchmarks/merge.{{volume}}.tsv"
    conda:
        "../envs/ffn.yaml"
    envmodules:
        *MODULES,
    threads: 1
    resources:
        mem_mb=memory("merge", block(RUN.merge)),
        runtime=duration("merge", voxels_in("segment_box")),
    params:
        flags=flags(RUN.merge),
        version=__version__,
    shell:
        "ffn merge {input.graphs} --segmentation {input.segmentation}:segmentation {params.flags} "
        "--mapping {output.mapping} --out {output.segmentation}:segmentation > {log} 2>&1"
