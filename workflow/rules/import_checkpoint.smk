# The model folder that training starts from, made from one of our checkpoints or a published one.


rule import_checkpoint:
    input:
        checkpoint=PIPELINE.models.imported_files,
    output:
        model=ensure(PATHS.of("import-checkpoint"), non_empty=True),
        weights=ensure(PATHS.of("import-checkpoint", "weights"), non_empty=True),
    log:
        PATHS.log("import_checkpoint"),
    benchmark:
        PATHS.benchmark("import_checkpoint")
    threads: 1
    resources:
        mem_mb=memory("import-checkpoint"),
        runtime=by_attempt(10),
    params:
        checkpoint=shlex.quote(RUN.init or ""),
        folder=subpath(output.model, parent=True),
        flags=arguments.import_flags(PIPELINE),
    shell:
        "ffn import-checkpoint {params.checkpoint} {params.flags} --out {params.folder} > {log} 2>&1"
