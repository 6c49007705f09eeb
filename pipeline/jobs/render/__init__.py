"""Files for other people's schedulers, made from a job."""
