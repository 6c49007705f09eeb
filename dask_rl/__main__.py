"""`python -m dask_rl` is the `dask-rl` command."""

from dask_rl.pipeline.views.cli import main

if __name__ == "__main__":
    main()
