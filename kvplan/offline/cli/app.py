"""The ``kvplan`` command itself."""

from __future__ import annotations

import click

from kvplan import __version__
from kvplan.offline.cli.lazy_group import LazyGroup

EPILOG = """\b
Examples:
  kvplan plan llama-3.1-70b --tp 4 --memory 40GiB
  kvplan plan ./config.json --memory 60GiB --max-model-len auto
  kvplan plan --request recorded.json

\b
MODEL is a built-in name, a config.json, a directory that holds one, or a Hub id
(org/name[@revision], with 'pip install huggingface_hub').
Exit codes: 0 it fits, 1 it does not fit, 2 the input is wrong.
"""


@click.command(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=EPILOG,
)
@click.version_option(__version__, "-V", "--version", prog_name="kvplan")
def app() -> None:
    """Plan the KV cache of a large language model before loading it.

    kvplan answers from a model's config.json and a memory size what an engine would find out after
    loading the model: whether it fits, how long a context, how many requests at once, what limits
    it, and what to change.
    """
