# A synthetic volume with labels, in the project's format.


rule synth:
    output:
        image=ensure(IMAGE, non_empty=True),
        labels=ensure(LABELS, non_empty=True),
    log:
        PATHS.log("synth", "{volume}"),
    benchmark:
        PATHS.benchmark("synth", "{volume}")
    wildcard_constraints:
        volume=any_of(PIPELINE.synthetic),
    threads: 1
    resources:
        **needs("synth"),
    params:
        flags=lambda wildcards: flags(RUN.volumes[wildcards.volume].synthetic),
        seed=lambda wildcards: PIPELINE.seed_of(wildcards.volume),
    shell:
        "ffn synth {params.flags} --rng-seed {params.seed} "
        "--out-image {output.image} --out-labels {output.labels} > {log} 2>&1"
