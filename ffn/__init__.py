"""Raw electron microscopy to segmented neurons with flood-filling networks."""

import os

__version__ = "0.4.0"

# TensorFlow reads it when it is first loaded, by whichever module that is: errors only, no notes about its build.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
