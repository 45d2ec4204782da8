"""Scores of a segmentation against the ground truth, and the stages that use them."""
