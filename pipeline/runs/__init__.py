"""Jobs and what they need: clusters, training, evaluation, collection, run directories."""
