"""The entry point in vLLM's group ``vllm.general_plugins``."""

from __future__ import annotations

import logging
import os


def register() -> None:
    """Install kvplan, unless ``KVPLAN_DISABLE=1``. A failure never stops the server."""
    if os.environ.get("KVPLAN_DISABLE", "0") not in ("", "0"):
        return
    try:
        from kvplan import vllm

        vllm.install()
    except Exception as error:
        logging.getLogger("vllm.kvplan").warning(
            "kvplan could not be installed, vLLM plans the KV cache itself: %s: %s",
            type(error).__name__,
            error,
        )
