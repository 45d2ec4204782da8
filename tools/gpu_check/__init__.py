"""The steps of `tools/gpu_check.sh`: what is to be known of a GPU, each measured in a few seconds."""
