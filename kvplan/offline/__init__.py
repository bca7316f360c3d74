"""The offline tool: from a model's configuration and a memory size to a plan, without a GPU."""
