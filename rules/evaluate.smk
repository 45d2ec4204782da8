# ARE, VOI and coverage against the truth, beside a watershed baseline on the same voxels.


rule evaluate:
    input:
        segmentation=FINAL,
        truth=f"{VOLUME}/labels.h5",
        image=f"{VOLUME}/raw.h5",
    output:
        scores=ensure(f"{OUT}/evaluation/{{volume}}.json", non_empty=True),
        baseline=ensure(f"{OUT}/evaluation/{{volume}}-baseline.h5", non_empty=True),
    log:
        f"{OUT}/logs/evaluate/{{volume}}.log",
    benchmark:
        f"{OUT}/benchmarks/evaluate.{{volume}}.tsv"
    conda:
        "../envs/ffn.yaml"
    threads: 1
    resources:
        mem_mb=by_attempt(4000),
        runtime=by_attempt(120),
    params:
        box=lambda wildcards: PLACES[wildcards.volume].evaluate_box,
        flags=flags(RUN.evaluate),
        version=__version__,
    shell:
        "ffn evaluate --segmentation {input.segmentation}:segmentation --truth {input.truth}:labels "
        "--image {input.image}:raw --box {params.box} {params.flags} --baseline-out {output.baseline}:segmentation "
        "--out {output.scores} > {log} 2>&1"
