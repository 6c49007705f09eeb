"""Dask clusters of jobs: those that we start, a file for each kind, and those that we join."""
