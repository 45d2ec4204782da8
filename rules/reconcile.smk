# Subvolumes joined into one volume with global ids.


rule reconcile:
    input:
        subvolumes=lambda wildcards: PIPELINE.files("segment", volume=wildcards.volume, order=wildcards.order),
    output:
        segmentation=ensure(PATHS.file("reconcile"), non_empty=True),
    log:
        PATHS.log("reconcile{order}", "{volume}"),
    benchmark:
        PATHS.benchmark("reconcile{order}", "{volume}")
    threads: 1
    resources:
        mem_mb=memory("reconcile", block_voxels(RUN.reconcile)),
        runtime=duration("reconcile", PIPELINE.voxels("segment_box")),
    params:
        subvolumes=lambda wildcards: FILES("segment", volume=wildcards.volume, order=wildcards.order),
        flags=flags(RUN.reconcile),
        untracked=arguments.untracked(RUN.reconcile),
    shell:
        "ffn reconcile {params.subvolumes} {params.flags} {params.untracked} "
        "--out {output.segmentation} > {log} 2>&1"
