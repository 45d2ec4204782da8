# ARE, VOI, coverage and run length of the final segmentation, of the earlier ones (base, agglomerated), and of a
# watershed baseline on the same voxels.
SCORED = PATHS.segmentations(RUN)
EARLIER = list(SCORED)[:-1]


rule evaluate:
    input:
        segmentation=tracked_file(PATHS.final(RUN)),
        earlier=[tracked_file(SCORED[name]) for name in EARLIER],
        truth=LABELS,
        masks=MASKS,
        image=IMAGE,
        skeletons=lambda wildcards: PIPELINE.files("skeletonize", volume=wildcards.volume),
        given=lambda wildcards: skeleton_files(RUN.volumes[wildcards.volume].skeletons),
        blocks=of("evaluate", "files"),
    output:
        scores=ensure(PATHS.of("evaluate"), non_empty=True),
        baseline=[PATHS.file("evaluate", "baseline")] if RUN.evaluate.watershed else [],
    log:
        PATHS.log("evaluate", "{volume}"),
    benchmark:
        PATHS.benchmark("evaluate", "{volume}")
    threads: 1
    resources:
        **needs("evaluate"),
    params:
        masks=MASKED,
        box=of("evaluate", "box"),
        skeletons=lambda wildcards: arguments.skeletons(PIPELINE, wildcards.volume),
        baseline=lambda wildcards, input, output: " ".join(
            [
                arguments.option("--image", [input.image] if output.baseline else []),
                arguments.option("--baseline-out", output.baseline),
            ]
        ),
        name=list(SCORED)[-1],
        earlier=lambda wildcards, input: " ".join(
            f"--earlier {name}={file}" for name, file in zip(EARLIER, input.earlier)
        ),
        seed=f"--rng-seed {SEED}",
        flags=flags(RUN.evaluate),
        untracked=arguments.untracked(RUN.evaluate),
        job="",
        out=lambda wildcards, output: output.scores,
    shell:
        "ffn evaluate --segmentation {input.segmentation} --name {params.name} {params.earlier} "
        "--truth {input.truth} {params.skeletons} {params.baseline} --box={params.box} {params.masks} {params.flags} "
        "{params.untracked} {params.seed} {params.job} --out {params.out} > {log} 2>&1"


# Parts of the blocks of a large volume, without the inputs that only the last job needs.
use rule evaluate as evaluate_blocks with:
    input:
        segmentation=tracked_file(PATHS.final(RUN)),
        earlier=[tracked_file(SCORED[name]) for name in EARLIER],
        truth=LABELS,
        masks=MASKS,
        skeletons=lambda wildcards: PIPELINE.files("skeletonize", volume=wildcards.volume),
        given=lambda wildcards: skeleton_files(RUN.volumes[wildcards.volume].skeletons),
    output:
        record=ensure(PATHS.job("evaluate"), non_empty=True),
    log:
        PATHS.log("evaluate_blocks", "{volume}", "{step_name}-{job}"),
    benchmark:
        PATHS.benchmark("evaluate_blocks", "{volume}", "{step_name}-{job}")
    resources:
        **needs("evaluate_blocks"),
    params:
        baseline="",
        seed="",
        job=arguments.job,
        out=PATHS.of("evaluate"),
