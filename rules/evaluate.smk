# ARE, VOI, coverage and run length of the final segmentation, of what it was made from (base, agglomerated), and of a
# watershed baseline on the same voxels.
SCORED = PATHS.segmentations(RUN)
EARLIER = list(SCORED)[:-1]


rule evaluate_blocks:
    input:
        segmentation=tracked_file(PATHS.final(RUN)),
        earlier=[tracked_file(SCORED[name]) for name in EARLIER],
        truth=LABELS,
        masks=MASKS,
        skeletons=lambda wildcards: PIPELINE.files("skeletonize", volume=wildcards.volume),
    output:
        record=ensure(PATHS.job("evaluate"), non_empty=True),
    log:
        PATHS.log("evaluate_blocks", "{volume}", "{job}"),
    benchmark:
        PATHS.benchmark("evaluate_blocks", "{volume}", "{job}")
    threads: 1
    resources:
        mem_mb=memory("evaluate", block_voxels(RUN.evaluate)),
        runtime=duration("evaluate", PIPELINE.voxels_of_blocks("evaluate")),
    params:
        masks=MASKED,
        mask_stamps=MASK_STAMPS,
        box=PIPELINE.box("evaluate_box"),
        skeletons=lambda wildcards: arguments.skeletons(PIPELINE, wildcards.volume),
        name=list(SCORED)[-1],
        earlier=lambda wildcards, input: arguments.named("--earlier", EARLIER, input.earlier),
        flags=flags(RUN.evaluate),
        untracked=arguments.untracked(RUN.evaluate),
        scores=PATHS.of("evaluate"),
    shell:
        "ffn evaluate --segmentation {input.segmentation} --name {params.name} {params.earlier} "
        "--truth {input.truth} {params.skeletons} --box {params.box} {params.masks} {params.flags} {params.untracked} "
        "--job {wildcards.job} --job-record {output.record} --out {params.scores} > {log} 2>&1"


rule evaluate:
    input:
        segmentation=tracked_file(PATHS.final(RUN)),
        earlier=[tracked_file(SCORED[name]) for name in EARLIER],
        truth=LABELS,
        masks=MASKS,
        image=IMAGE,
        skeletons=lambda wildcards: PIPELINE.files("skeletonize", volume=wildcards.volume),
        blocks=lambda wildcards: PIPELINE.job_records("evaluate", wildcards.volume),
    output:
        scores=ensure(PATHS.of("evaluate"), non_empty=True),
        bodies=PATHS.of("evaluate", "bodies"),
        errors=PATHS.of("evaluate", "errors"),
        baseline=[PATHS.file("evaluate", "baseline")] if RUN.evaluate.watershed else [],
    log:
        PATHS.log("evaluate", "{volume}"),
    benchmark:
        PATHS.benchmark("evaluate", "{volume}")
    threads: 1
    resources:
        mem_mb=memory("evaluate", PIPELINE.scored_at_once),
        runtime=duration("evaluate", PIPELINE.voxels_of_blocks("evaluate")),
    params:
        masks=MASKED,
        mask_stamps=MASK_STAMPS,
        box=PIPELINE.box("evaluate_box"),
        skeletons=lambda wildcards: arguments.skeletons(PIPELINE, wildcards.volume),
        baseline=lambda wildcards, input, output: " ".join(
            [
                arguments.option("--image", [input.image] if output.baseline else []),
                arguments.option("--baseline-out", output.baseline),
            ]
        ),
        name=list(SCORED)[-1],
        earlier=lambda wildcards, input: arguments.named("--earlier", EARLIER, input.earlier),
        seed=SEED,
        flags=flags(RUN.evaluate),
        untracked=arguments.untracked(RUN.evaluate),
        job=PIPELINE.job_option("evaluate"),
    shell:
        "ffn evaluate --segmentation {input.segmentation} --name {params.name} {params.earlier} "
        "--truth {input.truth} {params.skeletons} {params.baseline} --box {params.box} {params.masks} {params.flags} "
        "{params.untracked} --rng-seed {params.seed} {params.job} --out {output.scores} > {log} 2>&1"
