"""One importer per file, one registry."""
