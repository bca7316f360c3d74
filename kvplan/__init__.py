"""KV cache planner and block pool for large language model servers."""
