# Subvolumes joined into one volume with global ids.


rule reconcile:
    input:
        subvolumes=lambda wildcards: expand(
            f"{OUT}/segmentation/{{volume}}/subvolumes{{order}}/{{subvolume}}.h5",
            volume=wildcards.volume,
            order=wildcards.order,
            subvolume=SUBVOLUMES[wildcards.volume],
        ),
    output:
        segmentation=ensure(
            f"{OUT}/segmentation/{{volume}}/segmentation{{order}}.h5", non_empty=True
        ),
    log:
        f"{OUT}/logs/reconcile{{order}}/{{volume}}.log",
    benchmark:
        f"{OUT}/benchmarks/reconcile{{order}}.{{volume}}.tsv"
    conda:
        "../envs/ffn.yaml"
    envmodules:
        *MODULES,
    threads: 1
    resources:
        mem_mb=memory("reconcile", block(RUN.reconcile)),
        runtime=duration("reconcile", voxels_in("segment_box")),
    params:
        flags=flags(RUN.reconcile),
        version=__version__,
    shell:
        "ffn reconcile {input.subvolumes} {params.flags} --out {output.segmentation}:segmentation > {log} 2>&1"
