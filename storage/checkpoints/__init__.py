"""Checkpoints: directories of plain tensors and JSON, written and read without running code."""
