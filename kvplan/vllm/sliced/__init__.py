"""``KVPLAN_GROUPING=sliced`` in vLLM: one group of each kind, blocks cut into slices.

``gate`` says what is left to vLLM's plan, ``config`` carries the slices to the scheduler and the
workers. The blocks are handed out by ``kvplan.vllm.cache_manager``, whose pool ``pool`` shows. See
docs/sliced.md.
"""
