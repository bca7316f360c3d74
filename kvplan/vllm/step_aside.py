"""What a planning step raises where vLLM's own function must run."""


class StepAside(Exception):
    """vLLM's own function must run; the message says why."""

    def __init__(self, reason: str, *, by_design: bool = False):
        """``by_design``: nothing to warn of."""
        super().__init__(reason)
        self.by_design = by_design
