# From raw EM to segmented neurons. `snakemake --profile profiles/local` runs everything that config.yaml describes;
# a stage's name as target (`… membrane`) stops there, `--forcerun STAGE` repeats one, `-n` shows the plan.


include: "rules/common.smk"
include: "rules/cluster.smk"


rule all:
    default_target: True
    input:
        f"{OUT}/report.html",


include: "rules/ingest.smk"
include: "rules/membrane.smk"
include: "rules/partition.smk"
include: "rules/coordinates.smk"
include: "rules/records.smk"
include: "rules/train.smk"
include: "rules/select.smk"
include: "rules/segment.smk"
include: "rules/reconcile.smk"
include: "rules/consensus.smk"
include: "rules/agglomerate.smk"
include: "rules/merge.smk"
include: "rules/fill.smk"
include: "rules/evaluate.smk"
include: "rules/sweep.smk"
include: "rules/export.smk"
include: "rules/report.smk"
include: "rules/study.smk"
