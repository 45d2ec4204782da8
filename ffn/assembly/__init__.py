"""From subvolumes to one volume."""
