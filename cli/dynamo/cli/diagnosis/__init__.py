"""What can be wrong with a machine, a cluster or a pipeline: rules over collected facts, without I/O."""
