"""A click group that imports a command's module only when the command runs."""

from __future__ import annotations

import importlib
import io
import sys
from typing import Any

import click

from kvplan.offline.cli.commands import COMMANDS
from kvplan.offline.cli.failures import BAD_INPUT, ReaderGone, report_failure
from kvplan.offline.cli.suggestions import did_you_mean


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
            from kvplan.offline.cli.line_defaults import take_line

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
