"""The ``kvplan`` command itself: its table of commands, and one way out for every error."""

from __future__ import annotations

import importlib
import io
import sys
from typing import Any, NamedTuple

import click

from kvplan import __version__
from kvplan.offline.cli.failures import BAD_INPUT, ReaderGone, did_you_mean, report_failure


class Entry(NamedTuple):
    """One command: its module in ``kvplan.offline.cli``, which has it as ``command``; its help."""

    module: str
    summary: str


COMMANDS: dict[str, Entry] = {
    "plan": Entry("plan", "Plan a model's KV cache: does it fit, how much does it hold?"),
    "fit": Entry("fit", "Find the longest context, or the least memory or GPUs, that fits."),
    "serve-line": Entry("serve_line", "Print the vllm serve line that works."),
    "log": Entry("log", "Explain a vLLM start-up log: memory, time, refusal; compare several."),
    "explain": Entry("explain", "One request's bill, group by group, in plain words."),
    "frontier": Entry("frontier", "Groups against tokens: vLLM's grouping and the better ones."),
    "diff": Entry("diff", "Two plans side by side."),
    "check": Entry("check", "Check a placement with the independent checker."),
    "sweep": Entry("sweep", "Plan a whole grid of what-ifs into a CSV or JSON file."),
    "replay": Entry("replay", "Run a trace of requests through a plan: hits, waits, preemptions."),
    "map": Entry("map", "A picture of what a block holds, group by group."),
    "bench": Entry("bench", "How long start-up planning takes here, beside vLLM."),
    "models": Entry("models", "List the built-in models and the known architectures."),
    "completion": Entry("completion", "Print the completion script of a shell."),
}


class LazyGroup(click.Group):
    """The commands of `COMMANDS`, and one way out for every error."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order of the table, which is the order of usefulness."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command's module."""
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"kvplan.offline.cli.{COMMANDS[cmd_name].module}")
        return module.command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.summary) for name, entry in COMMANDS.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Name the nearest command where there is none of this name."""
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            raise click.UsageError(
                f"there is no command {name!r}."
                f"{did_you_mean(name, COMMANDS)} Commands: {', '.join(COMMANDS)}.",
                ctx=ctx,
            )
        found, command, rest = super().resolve_command(ctx, args)
        if command is not None:
            from kvplan.offline.cli.defaults import take_line

            rest = take_line(ctx, command, rest)
        return found, command, rest

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        """Run; a reader that went away is an error, whoever met it."""
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                # A name that the terminal's encoding lacks is escaped, and the answer printed.
                stream.reconfigure(errors="backslashreplace")
        try:
            result = super().main(*args, **kwargs)
            sys.stdout.flush()
        except SystemExit as error:
            # rich leaves with 1 where writing fails.
            if isinstance(error.__context__, BrokenPipeError):
                raise error.__context__ from None
            raise
        return result

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        """The group's context, or its help."""
        try:
            return super().make_context(*args, **kwargs)
        except BrokenPipeError as error:
            raise ReaderGone from error

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise ReaderGone from error

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run, print one paragraph where something is wrong, and leave with the exit code."""
        kwargs["standalone_mode"] = False
        try:
            result = self._run(*args, **kwargs)
        except click.exceptions.NoArgsIsHelpError as error:
            click.echo(error.format_message(), err=True)
            sys.exit(BAD_INPUT)
        except Exception as error:
            sys.exit(report_failure(error))
        except KeyboardInterrupt:
            sys.exit(report_failure(click.Abort()))
        sys.exit(result if isinstance(result, int) else 0)


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
