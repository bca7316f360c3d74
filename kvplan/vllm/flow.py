"""vLLM's planning flow on kvplan: the functions that its engine core calls.

They mirror ``get_global_kv_cache_groups`` and ``get_kv_cache_configs`` of
vllm/v1/core/kv_cache_planning.py (0.33), and ``get_kv_cache_configs`` of
vllm/v1/core/kv_cache_utils.py (0.32), which groups the layers itself.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import logging
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from kvplan import _core
from kvplan.vllm import conversion, grouping, record, report, verify
from kvplan.vllm.decide import Known, StepAside
from kvplan.vllm.detect import Vllm
from kvplan.vllm.options import Options
from kvplan.vllm.patch import Patch, stock

_stock_mode: contextvars.ContextVar[bool] = contextvars.ContextVar("kvplan_stock", default=False)


@contextlib.contextmanager
def stock_mode() -> Iterator[None]:
    """Leave everything inside to vLLM's own functions, what kvplan's builder does included."""
    token = _stock_mode.set(True)
    try:
        yield
    finally:
        _stock_mode.reset(token)


class Answer(NamedTuple):
    """A result, and what vLLM would log and write with it, if anything."""

    value: Any
    commit: Callable[[], None] | None = None
    verifiable: bool = True  # False where another plan than vLLM's was asked for


class Flow:
    """kvplan in the place of one vLLM's planner.

    Attributes:
        vllm: the vLLM.
        options: what the user asks for.
        planner: kvplan's planner on that vLLM's objects.
        known: what decides whether it may answer.
        stock: vLLM's own functions by name.
        builders: builder classes whose placement kvplan knows.
    """

    def __init__(self, vllm: Vllm, options: Options):
        """Read how this vLLM's functions and classes are; nothing is changed.

        Raises:
            UnknownClassError, AttributeError, ImportError: it is not one that kvplan knows.
        """
        self.vllm = vllm
        self.options = options
        self.stock = {name: stock(vllm.planning, name) for name in vllm.flow}
        self.known = Known(vllm)
        self.planner = _core.VllmPlanner(
            conversion.describe(vllm.interface, before_033=vllm.before_033)
        )
        self.builders: tuple[type, ...] = ()
        self._closed = False

    @functools.cached_property
    def verify(self) -> bool:
        """Whether each plan is compared with vLLM's, whose result is then used."""
        if self.options.verify is not None:
            return self.options.verify
        unknown = self.known.unknown
        if unknown is None:
            return False
        report.once(
            logging.INFO,
            f"vLLM {self.vllm.version}: {unknown}, so each plan is compared with vLLM's",
        )
        return True

    def close(self) -> None:
        """Leave every later call to vLLM: functions of other plugins may hold on to kvplan's."""
        self._closed = True

    def keeps_out(self) -> bool:
        """Whether vLLM's own plan is asked for."""
        return self._closed or _stock_mode.get()

    def patches(self) -> list[Patch]:
        """The functions in the place of vLLM's."""

        def get_global_kv_cache_groups(vllm_config: Any, kv_cache_specs: Any) -> Any:
            return self.groups(vllm_config, kv_cache_specs)

        def get_kv_cache_configs(
            vllm_config: Any,
            kv_cache_specs: Any,
            available_memory: Any,
            global_kv_cache_groups: Any,
        ) -> Any:
            groups = (global_kv_cache_groups,)
            return self.configs(vllm_config, kv_cache_specs, available_memory, *groups)

        def get_kv_cache_configs_032(
            vllm_config: Any, kv_cache_specs: Any, available_memory: Any
        ) -> Any:
            return self.configs(vllm_config, kv_cache_specs, available_memory)

        functions: tuple[Callable[..., Any], ...] = (get_kv_cache_configs_032,)
        if not self.vllm.before_033:
            functions = (get_global_kv_cache_groups, get_kv_cache_configs)
        return [
            Patch(self.vllm.planning, name, functools.wraps(self.stock[name])(function))
            for name, function in zip(self.vllm.flow, functions, strict=True)
        ]

    def groups(self, vllm_config: Any, kv_cache_specs: Any) -> Any:
        """The groups of the whole model (0.33)."""
        name = "get_global_kv_cache_groups"
        return self.call(
            name, self._groups, self.stock[name], vllm_config, kv_cache_specs, grouping=True
        )

    def configs(
        self, vllm_config: Any, kv_cache_specs: Any, available_memory: Any, *groups: Any
    ) -> Any:
        """The KV cache of every worker, for the groups given (0.33), or grouped here (0.32)."""
        name = "get_kv_cache_configs"
        inputs = (vllm_config, kv_cache_specs, available_memory)
        describe = None
        if not self.keeps_out():
            if self.options.record:
                record.record(self, *inputs)
            if self.verify:
                # By the time of a description, vLLM has written the fitted length.
                model = getattr(vllm_config, "model_config", None)
                length = getattr(model, "max_model_len", None)
                describe = functools.partial(
                    record.request_text, self, *inputs, max_model_len=length
                )
        return self.call(name, self._configs, self.stock[name], *inputs, *groups, describe=describe)

    def call(
        self,
        function: str,
        prepare: Callable[..., Answer],
        stock: Callable[..., Any],
        vllm_config: Any,
        *arguments: Any,
        grouping: bool = False,
        of_builder: bool = False,
        describe: Callable[[], str] | None = None,
    ) -> Any:
        """Answer with kvplan if it can, otherwise with whatever ``stock`` returns or raises.

        ``prepare`` changes nothing and logs nothing; ``commit`` of its answer does. ``describe``
        gives the input of a call whose verification failed.
        """
        if self.keeps_out():
            return stock(vllm_config, *arguments)
        try:
            builders = () if of_builder else self.builders
            aside = self.known.why_not(vllm_config, grouping=grouping, builders=builders)
            if aside is None:
                answer = prepare(vllm_config, *arguments)
        except Exception as error:
            aside = StepAside(f"{type(error).__name__}: {error}")
        if aside is not None:
            return _step_aside(aside, function, stock, vllm_config, *arguments)
        if self.verify and answer.verifiable:
            with stock_mode():
                return verify.compared(
                    function, answer.value, lambda: stock(vllm_config, *arguments), describe
                )
        if answer.commit is not None:
            answer.commit()
        report.native(function)
        return answer.value

    def _groups(self, vllm_config: Any, kv_cache_specs: Any) -> Answer:
        chosen = grouping.keywords(self.options.grouping, vllm_config, kv_cache_specs)
        groups, notices = self.planner.global_groups(vllm_config, kv_cache_specs, chosen)
        return Answer(groups, functools.partial(self.log, notices), not chosen)

    def _configs(
        self,
        vllm_config: Any,
        kv_cache_specs: Any,
        available_memory: Any,
        global_kv_cache_groups: Any = None,
    ) -> Answer:
        request = (vllm_config, kv_cache_specs, available_memory, global_kv_cache_groups)
        # From 0.33 on, the groups are there already.
        chosen: dict[str, Any] = {}
        if self.vllm.before_033:
            chosen = grouping.keywords(self.options.grouping, vllm_config, kv_cache_specs)
        if grouping.is_sliced(chosen):
            try:
                return self._planned(chosen, *request)
            except ValueError as error:  # gate.Refused, or what the planner says
                grouping.warn_not_sliced(error)
                chosen = {}
        return self._planned(chosen, *request)

    def _planned(
        self, chosen: dict[str, Any], vllm_config: Any, specs: Any, memory: Any, groups: Any
    ) -> Answer:
        configs, effects = self.planner.plan(vllm_config, specs, memory, groups, chosen)
        if grouping.is_sliced(chosen):
            configs = grouping.cut(configs, effects["slices"], chosen)
        commit = effects and functools.partial(self._commit, vllm_config, effects)
        return Answer(configs, commit, not chosen)

    def log(self, notices: list[tuple[str, str]]) -> None:
        """Log the lines of vLLM through its own logger."""
        for level, message in notices:
            getattr(self.vllm.planning.logger, level)("%s", message)

    def _commit(self, vllm_config: Any, effects: dict[str, Any]) -> None:
        """Log and write what vLLM would."""
        self.log(effects["notices"])
        for own in effects["own_blocks"]:
            self.vllm.planning.logger.info(
                "Overriding num_gpu_blocks=%d with num_gpu_blocks_override=%d",
                own,
                effects["num_gpu_blocks_override"],
            )
        if effects["auto_fit"]:
            self._commit_fitted_length(vllm_config, effects)
        for level, message in effects["remarks"]:
            if level == "warning":
                report.once(logging.WARNING, message)

    def _commit_fitted_length(self, vllm_config: Any, effects: dict[str, Any]) -> None:
        """Write the length, and the line that users look for after ``--max-model-len auto``."""
        planning = self.vllm.planning
        requested, fitted = effects["requested_max_model_len"], effects["max_model_len"]
        if effects["attention_free"]:
            planning.logger.info_once(
                "Auto-fit max_model_len: attention-free model, using derived max_model_len=%d",
                requested,
            )
            return
        memory = f"{planning.format_gib(effects['limiting_memory'])} GiB"
        memory = f"{memory} {planning._kv_cache_device_name(vllm_config)}"
        if fitted >= requested:
            planning.logger.info_once(
                "Auto-fit max_model_len: full model context length %d fits in "
                "available KV cache memory (%s)",
                requested,
                memory,
            )
            return
        vllm_config.model_config.max_model_len = fitted
        planning.logger.info_once(
            "Auto-fit max_model_len: reduced from %d to %d to fit in available KV cache memory "
            "(%s)",
            requested,
            fitted,
            memory,
        )


def _step_aside(aside: StepAside, function: str, stock: Callable[..., Any], *arguments: Any) -> Any:
    """The outcome of vLLM. Where it fails as well, its error is all that anyone needs."""
    try:
        with stock_mode():
            result = stock(*arguments)
    except Exception:
        report.error(function)
        raise
    report.fallback(str(aside), logging.INFO if aside.by_design else logging.WARNING)
    return result
