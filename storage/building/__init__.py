"""Datasets under construction: from episodes to shards, and to a manifest."""
