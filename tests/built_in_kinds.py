"""Built-in models of which no two keep the same kinds of cache; the others are like one of them."""

KINDS = (
    "deepseek-v3.2",  # latents and index keys
    "deepseek-v4-flash",  # windows, compressed states and their rings
    "deepseek-v4.1-flash",  # the same, shared between layers
    "gemma-3-27b",  # windows in five of six layers
    "gemma-4-26b-a4b",  # the same, with heads of other sizes
    "glm-5.2",  # index keys in a few layers
    "gpt-oss-120b",  # windows in every other layer
    "jamba-1.5-large",  # Mamba
    "llama-3.1-70b",  # keys and values of every token
    "llama-4-scout",  # chunks
    "mimo-v2-flash",  # values shorter than keys
    "nemotron-nano-9b-v2",  # Mamba 2
    "qwen3-next-80b",  # gated delta rule
)
