# ARE, VOI, coverage and run length against the truth, beside a watershed baseline on the same voxels.


rule skeletonize:
    input:
        truth=f"{VOLUME}/labels.h5",
    output:
        skeletons=ensure(f"{OUT}/evaluation/{{volume}}-skeletons.h5", non_empty=True),
    log:
        f"{OUT}/logs/skeletonize/{{volume}}.log",
    benchmark:
        f"{OUT}/benchmarks/skeletonize.{{volume}}.tsv"
    conda:
        "../envs/ffn.yaml"
    envmodules:
        *MODULES,
    threads: 1
    resources:
        mem_mb=memory("skeletonize", voxels_in("evaluate_box")),
        runtime=duration("skeletonize", voxels_in("evaluate_box")),
    params:
        box=lambda wildcards: PLACES[wildcards.volume].evaluate_box,
        flags=flags(RUN.skeletonize),
        version=__version__,
    shell:
        "ffn skeletonize --labels {input.truth}:labels --box {params.box} {params.flags} "
        "--out {output.skeletons} > {log} 2>&1"


rule evaluate:
    input:
        segmentation=FINAL,
        truth=f"{VOLUME}/labels.h5",
        image=f"{VOLUME}/raw.h5",
        skeletons=lambda wildcards: [
            f"{OUT}/evaluation/{wildcards.volume}-skeletons.h5"
        ]
        * (wildcards.volume in SKELETONIZED),
    output:
        scores=ensure(f"{OUT}/evaluation/{{volume}}.json", non_empty=True),
        tables=multiext(f"{OUT}/evaluation/{{volume}}", "-bodies.csv", "-errors.csv"),
        baseline=[f"{OUT}/evaluation/{{volume}}-baseline.h5"] * RUN.evaluate.watershed,
    log:
        f"{OUT}/logs/evaluate/{{volume}}.log",
    benchmark:
        f"{OUT}/benchmarks/evaluate.{{volume}}.tsv"
    conda:
        "../envs/ffn.yaml"
    envmodules:
        *MODULES,
    threads: 1
    resources:
        mem_mb=memory("evaluate", scored_at_once),
        runtime=duration("evaluate", voxels_in("evaluate_box")),
    params:
        box=lambda wildcards: PLACES[wildcards.volume].evaluate_box,
        skeletons=lambda wildcards, input: skeletons_of(
            wildcards.volume, input.skeletons
        ),
        baseline=lambda wildcards, input, output: baseline_of(
            input.image, output.baseline
        ),
        flags=flags(RUN.evaluate),
        version=__version__,
    shell:
        "ffn evaluate --segmentation {input.segmentation}:segmentation --truth {input.truth}:labels "
        "{params.skeletons} {params.baseline} --box {params.box} {params.flags} "
        "--out {output.scores} > {log} 2>&1"
