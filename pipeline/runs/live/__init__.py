"""Runs under way: the handle on one, from this process or another; what they tell the scheduler, and are told."""
