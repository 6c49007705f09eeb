"""From a dataset to batches: order, partition, blocks, one iterator per learner."""
