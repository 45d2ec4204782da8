# From raw EM to segmented neurons. `snakemake --profile profiles/local` runs everything that config.yaml describes.
# The target STAGE_all (such as membrane_all) stops after a stage, `--forcerun STAGE` repeats it, `-n` shows the plan.


include: "rules/common.smk"


rule all:
    default_target: True
    input:
        PATHS.of("report"),


for stage in STAGES:

    include: f"rules/{stage.replace('-', '_')}.smk"


include: "rules/study.smk"


snakemake_patches.ungroup(workflow, PIPELINE.is_shared)
snakemake_patches.keep_slurm_extra(workflow)
snakemake_patches.give_container(workflow, SOFTWARE["container"], has_launcher="launcher" in SITE)
snakemake_patches.give_software(workflow, "../envs/ffn.yaml", SOFTWARE["modules"].split())
