"""Synthetic EM volumes with known neurites, for the demo and for tests."""

from ffn.synthetic.phantom import Phantom, make_phantom

__all__ = ["Phantom", "make_phantom"]
