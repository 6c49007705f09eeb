"""Moves data from storage to learners and runs jobs; the top layer."""
