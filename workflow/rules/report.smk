# A first look at images, labels and membranes, before the training; and one HTML page about the run.


rule look:
    input:
        volumes=[*PIPELINE.targets("synth"), *PIPELINE.targets("ingest")],
        membranes=PIPELINE.targets("membrane"),
    output:
        look=PATHS.of("report", "look"),
    log:
        PATHS.log("look"),
    benchmark:
        PATHS.benchmark("look")
    threads: 1
    resources:
        mem_mb=memory("report"),
        runtime=by_attempt(30),
    params:
        run=subpath(output.look, parent=True),
    shell:
        "ffn report {params.run} --first --out {output.look} > {log} 2>&1"


rule report:
    input:
        look=PATHS.of("report", "look"),
        model=TRAINED,
        scores=PIPELINE.targets("evaluate"),
        sweeps=PIPELINE.targets("sweep"),
        exports=PIPELINE.targets("export"),
    output:
        report=report(PATHS.of("report"), caption="report-caption.rst"),
    log:
        PATHS.log("report"),
    benchmark:
        PATHS.benchmark("report")
    threads: 1
    resources:
        mem_mb=memory("report"),
        runtime=by_attempt(30),
    params:
        run=subpath(output.report, parent=True),
    shell:
        "ffn report {params.run} --out {output.report} > {log} 2>&1"
