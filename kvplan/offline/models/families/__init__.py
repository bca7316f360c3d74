"""One module per attention family: a model config to its layers."""
