"""Data at rest: datasets, formats, checkpoints. Knows numpy and zarr, neither torch nor distributed."""
