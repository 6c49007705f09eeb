"""Offline reinforcement learning on Dask: Zarr datasets in, trained policies out."""
