"""Opening datasets and reading their rows."""
