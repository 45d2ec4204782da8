# Voxels that training may start from, by partition.


rule coordinates:
    input:
        partitions=PATHS.file("partition"),
        membrane=PATHS.file("membrane"),
        masks=MASKS,
        blocks=of("coordinates", "files"),
    output:
        coordinates=ensure(PATHS.of("coordinates"), non_empty=True),
    log:
        PATHS.log("coordinates", "{volume}"),
    benchmark:
        PATHS.benchmark("coordinates", "{volume}")
    threads: 1
    resources:
        **needs("coordinates"),
    params:
        masks=MASKED,
        flags=flags(RUN.coordinates),
        job="",
        out=lambda wildcards, output: output.coordinates,
    shell:
        "ffn coordinates --partitions {input.partitions} --membrane {input.membrane} {params.masks} {params.flags} "
        "{params.job} --out {params.out} > {log} 2>&1"


# Parts of the blocks of a large volume.
use rule coordinates as coordinates_blocks with:
    input:
        partitions=PATHS.file("partition"),
        membrane=PATHS.file("membrane"),
        masks=MASKS,
    output:
        record=ensure(PATHS.job("coordinates"), non_empty=True),
    log:
        PATHS.log("coordinates_blocks", "{volume}", "{step_name}-{job}"),
    benchmark:
        PATHS.benchmark("coordinates_blocks", "{volume}", "{step_name}-{job}")
    resources:
        **needs("coordinates_blocks"),
    params:
        job=arguments.job,
        out=PATHS.of("coordinates"),
