"""From segmented subvolumes to one segmentation: reconciliation, consensus, agglomeration, filling."""
