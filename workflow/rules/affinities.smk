# Affinities of neighbouring voxels, and fragments, which `fill` joins to segments.
NETWORK = (not PIPELINE.taught and RUN.affinities.network) or PATHS.of("learn-affinities")


rule affinities:
    input:
        image=IMAGE,
        network=NETWORK,
        blocks=of("affinities", "files"),
    output:
        affinities=ensure(PATHS.file("affinities"), non_empty=True),
    log:
        PATHS.log("affinities", "{volume}"),
    benchmark:
        PATHS.benchmark("affinities", "{volume}")
    threads: 1
    resources:
        **needs("affinities"),
    params:
        box=of("affinities", "box"),
        job="",
        out=lambda wildcards, output: output.affinities,
    shell:
        "ffn affinities --image {input.image} --network {input.network} --box={params.box} {params.job} "
        "--out {params.out} > {log} 2>&1"


# Parts of the blocks of a large volume.
use rule affinities as affinities_blocks with:
    input:
        image=IMAGE,
        network=NETWORK,
    output:
        record=ensure(PATHS.job("affinities"), non_empty=True),
    log:
        PATHS.log("affinities_blocks", "{volume}", "{step_name}-{job}"),
    benchmark:
        PATHS.benchmark("affinities_blocks", "{volume}", "{step_name}-{job}")
    params:
        job=arguments.job,
        out=PATHS.of("affinities"),
