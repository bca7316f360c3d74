"""``KVPLAN_GROUPING=sliced`` in vLLM: one group of each kind, blocks cut into slices.

``gate`` says what is left to vLLM's plan, ``config`` carries the slices to the workers,
``block_pool`` and ``coordinator`` hand the slices out, ``patches`` puts them into vLLM. See
docs/sliced.md.
"""
