"""The engines that can run the network on this machine."""

import importlib.util

from ffn.kernels.inference import library_path

LACKING = {"kernels": not library_path().exists(), "jax": importlib.util.find_spec("jax") is None}
HERE = [name for name in ("openvino", "kernels", "jax") if not LACKING.get(name)]
