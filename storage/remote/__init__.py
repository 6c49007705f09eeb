"""Stores behind URLs: addresses, requests, listings, who may write."""
