"""The engines that can run the network on this machine."""

from ffn.config import ENGINES
from ffn.kernels.inference import library_path

HERE = [name for name in ENGINES if name != "kernels" or library_path().exists()]
