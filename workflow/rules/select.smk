# The best of the last checkpoints and the weights that training started from. Each segments the validation box and is
# scored there; `segment` uses the best.
SELECT_MASKED, SELECT_MASKS = arguments.known(PIPELINE, "masks", RUN.select_volume)
SELECT_GIVEN, SELECT_GIVEN_FILES = arguments.known(PIPELINE, "init_segmentation", RUN.select_volume)
CHECKPOINT_FILES, CHECKPOINT = arguments.checkpoint(PIPELINE)
VALIDATION_VOXELS = Box.parse(RUN.select.box).num_voxels if PIPELINE.steps else 0


rule checkpoint_model:
    input:
        trained=PATHS.of("train"),
        start=CHECKPOINT_FILES,
    output:
        model=ensure(PATHS.of("select", "candidate"), non_empty=True),
        weights=ensure(PATHS.of("select", "candidate_weights"), non_empty=True),
    log:
        PATHS.log("checkpoint_model", "{step}"),
    benchmark:
        PATHS.benchmark("checkpoint_model", "{step}")
    threads: 1
    resources:
        mem_mb=memory("import-checkpoint"),
        runtime=by_attempt(10),
    params:
        checkpoint=CHECKPOINT,
        folder=subpath(output.model, parent=True),
    shell:
        "ffn import-checkpoint {params.checkpoint} --out {params.folder} > {log} 2>&1"


rule checkpoint_segment:
    input:
        image=PATHS.file("ingest", "image", volume=RUN.select_volume),
        normalization=PATHS.of("normalize", volume=RUN.select_volume),
        masks=SELECT_MASKS,
        given=SELECT_GIVEN_FILES,
        model=PATHS.of("select", "candidate"),
        files=files_among(RUN.segment.seed_points),
    output:
        segmentation=ensure(PATHS.file("select", "candidate_segmentation"), non_empty=True),
    log:
        PATHS.log("checkpoint_segment", "{step}"),
    benchmark:
        PATHS.benchmark("checkpoint_segment", "{step}")
    threads: max(1, CORES // max(1, len(RUN.selectable_steps)))
    resources:
        mem_mb=by_attempt(flooding_mb(PIPELINE.selection_voxels, COSTED.model)),
        runtime=by_attempt(
            lambda wildcards, threads: flooding_minutes(
                PIPELINE.selection_voxels, COSTED.flooding_model, threads, FLOOD_GPU > 0
            )
        ),
        gpu=FLOOD_GPU,
    params:
        masks=SELECT_MASKED,
        given=SELECT_GIVEN,
        box=RUN.select.box,
        model=subpath(input.model, parent=True),
        flags=flags(RUN.segment),
        untracked=arguments.untracked(RUN.segment),
        machine=PATHS.machine,
    shell:
        "ffn segment --image {input.image} --model {params.model} --box={params.box} {params.flags} "
        "--normalization {input.normalization} {params.masks} {params.given} {params.untracked} "
        "--machine {params.machine:q} --out {output.segmentation} > {log} 2>&1"


rule checkpoint_evaluate:
    input:
        segmentation=PATHS.file("select", "candidate_segmentation"),
        truth=PATHS.file("ingest", "labels", volume=RUN.select_volume),
        masks=SELECT_MASKS,
    output:
        scores=ensure(PATHS.of("select", "candidate_scores"), non_empty=True),
    log:
        PATHS.log("checkpoint_evaluate", "{step}"),
    benchmark:
        PATHS.benchmark("checkpoint_evaluate", "{step}")
    threads: 1
    resources:
        mem_mb=memory("evaluate"),
        runtime=by_attempt(minutes("evaluate", VALIDATION_VOXELS)),
    params:
        masks=SELECT_MASKED,
        box=RUN.select.box,
        seed=SEED,
        flags=flags(RUN.evaluate),
        untracked=arguments.untracked(RUN.evaluate),
    shell:
        "ffn evaluate --segmentation {input.segmentation} --name base --truth {input.truth} "
        "--box={params.box} {params.masks} {params.flags} {params.untracked} --rng-seed {params.seed} "
        "--out {output.scores} > {log} 2>&1"


rule select:
    input:
        models=PIPELINE.files("select", "candidate"),
        scores=PIPELINE.files("select", "candidate_scores"),
    output:
        model=ensure(PATHS.of("select"), non_empty=True),
        weights=ensure(PATHS.of("select", "weights"), non_empty=True),
        selection=ensure(PATHS.of("select", "selection"), non_empty=True),
    log:
        PATHS.log("select"),
    benchmark:
        PATHS.benchmark("select")
    threads: 1
    resources:
        mem_mb=memory("select"),
        runtime=by_attempt(10),
    params:
        candidates=arguments.candidates(PIPELINE),
        folder=subpath(output.model, parent=True),
    shell:
        "ffn select {params.candidates} --out {params.folder} > {log} 2>&1"
