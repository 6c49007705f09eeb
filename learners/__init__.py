"""Updates: modules, algorithms, the learner and the learner group."""
