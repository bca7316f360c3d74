"""Options that were given on the command line, and those that the plan would not heed."""

from __future__ import annotations

from typing import Any

import click

from kvplan.offline.cli.failures import BadInput


def option_given(name: str) -> str | None:
    """The option as it is spelled, if the command line (not a preset) gives this parameter."""
    ctx = click.get_current_context()
    if ctx.get_parameter_source(name) is not click.core.ParameterSource.COMMANDLINE:
        return None
    return next(p.opts[0] for p in ctx.command.params if p.name == name)


#: Options of the planner that only some groupings heed.
_HEEDED_BY = {
    "max_groups": ("compact",),
    "reference_model_len": ("compact", "sliced"),
    "min_large_blocks": ("sliced",),
}


def refuse_unheeded(values: dict[str, Any], grouping: str) -> None:
    """Refuse options that the plan would not heed. `kvplan frontier` draws all groupings."""
    if click.get_current_context().command.name != "frontier":
        for name, groupings in _HEEDED_BY.items():
            option = option_given(name)
            if option is not None and grouping not in groupings:
                raise BadInput(
                    f"{option} changes nothing with --grouping {grouping}; give --grouping "
                    f"{' or '.join(groupings)}, or leave it out"
                )
    for name in ("gpu_memory_utilization", "weights", "weights_per_gpu", "overhead"):
        option = option_given(name)
        if option is not None and values["gpu"] is None:
            raise BadInput(f"{option} is for the estimate from --gpu; give --gpu, or leave it out")
