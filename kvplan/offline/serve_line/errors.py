"""What a line that cannot be read raises."""


class ServeLineError(ValueError):
    """A line that is no ``vllm serve`` line; the message names the word."""
