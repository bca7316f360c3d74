"""A ``vllm serve`` line, read with vLLM's own option names; nothing of a line is ever run.

`read_line` takes the words of a shell line, of ``docker run``, or the name of a YAML file (a
Kubernetes manifest, a compose file, a config of vLLM). `deployment_values` says what it means to
the commands of kvplan, and `written` writes it out again with other options.
"""

from kvplan.offline.serve_line.arguments import Argument, find_option, parse_arguments
from kvplan.offline.serve_line.deployment import Deployment, deployment_values
from kvplan.offline.serve_line.errors import ServeLineError
from kvplan.offline.serve_line.line import ServeLine, looks_like_line, read_line, starts_server
from kvplan.offline.serve_line.option_table import Option, option_table
from kvplan.offline.serve_line.written import written

__all__ = [
    "Argument",
    "Deployment",
    "Option",
    "ServeLine",
    "ServeLineError",
    "deployment_values",
    "find_option",
    "looks_like_line",
    "option_table",
    "parse_arguments",
    "read_line",
    "starts_server",
    "written",
]
