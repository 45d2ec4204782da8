"""Flood filling with images and POMs in the memory of a GPU; needs JAX."""
