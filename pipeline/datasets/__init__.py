"""Datasets made by many workers."""
