# Edges of the image, and the distance of every voxel to the nearest edge.


rule membrane:
    input:
        image=IMAGE,
        blocks=of("membrane", "files"),
    output:
        membrane=ensure(PATHS.file("membrane"), non_empty=True),
    log:
        PATHS.log("membrane", "{volume}"),
    benchmark:
        PATHS.benchmark("membrane", "{volume}")
    threads: 1
    resources:
        **needs("membrane"),
    params:
        box=of("membrane", "box"),
        flags=flags(RUN.membrane),
        untracked=arguments.untracked(RUN.membrane),
        job="",
        out=lambda wildcards, output: output.membrane,
    shell:
        "ffn membrane --image {input.image} --box={params.box} {params.flags} {params.untracked} "
        "{params.job} --out {params.out} > {log} 2>&1"


# Parts of the blocks of a large volume.
use rule membrane as membrane_blocks with:
    input:
        image=IMAGE,
    output:
        record=ensure(PATHS.job("membrane"), non_empty=True),
    log:
        PATHS.log("membrane_blocks", "{volume}", "{step_name}-{job}"),
    benchmark:
        PATHS.benchmark("membrane_blocks", "{volume}", "{step_name}-{job}")
    params:
        job=arguments.job,
        out=PATHS.of("membrane"),
