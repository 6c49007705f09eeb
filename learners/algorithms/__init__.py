"""One algorithm per file, one registry."""
