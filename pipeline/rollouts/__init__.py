"""Policies in environments: rolled out, evaluated, collected from."""
