# Subvolumes joined into one volume with global ids.


rule reconcile:
    input:
        subvolumes=lambda wildcards: PIPELINE.watched("segment", volume=wildcards.volume, order=wildcards.order),
        blocks=lambda wildcards: PIPELINE.job_records("reconcile", **wildcards),
    output:
        segmentation=ensure(PATHS.file("reconcile"), non_empty=True),
    log:
        PATHS.log("reconcile{order}", "{volume}"),
    benchmark:
        PATHS.benchmark("reconcile{order}", "{volume}")
    threads: 1
    resources:
        mem_mb=memory("reconcile", PART_VOXELS),
        runtime=duration("reconcile", PIPELINE.voxels_of_blocks("reconcile")),
    params:
        subvolumes=lambda wildcards: FILES("segment", volume=wildcards.volume, order=wildcards.order),
        flags=flags(RUN.reconcile),
        untracked=arguments.untracked(RUN.reconcile),
        job=PIPELINE.job_option("reconcile"),
        out=lambda wildcards, output: output.segmentation,
    shell:
        "ffn reconcile {params.subvolumes} {params.flags} {params.untracked} "
        "{params.job} --out {params.out} > {log} 2>&1"


# Parts of the blocks of a large volume.
use rule reconcile as reconcile_blocks with:
    input:
        subvolumes=PIPELINE.first_inputs("reconcile", "segment"),
        earlier=PIPELINE.earlier_records("reconcile"),
    output:
        record=ensure(PATHS.job("reconcile"), non_empty=True),
    log:
        PATHS.log("reconcile_blocks{order}", "{volume}", "{job}"),
    benchmark:
        PATHS.benchmark("reconcile_blocks{order}", "{volume}", "{job}")
    params:
        job=arguments.job,
        out=PATHS.of("reconcile"),
