"""vLLM drop-ins: the planner and the block pool behind vLLM's own names."""
