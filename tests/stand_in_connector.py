"""A connector of vLLM that moves no bytes: what it finds, and when, follows from names."""

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    SupportsHMA,
)


class StandInConnector(KVConnectorBase_V1, SupportsHMA):
    """The scheduler's side; a request's id is a number."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self.log: list[tuple[Any, ...]] = []
        self._asked: set[str] = set()
        self._loaded: set[str] = set()
        self._loading: dict[str, int] = {}  # steps left
        self._sending: dict[str, int] = {}

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> Any:
        name = request.request_id
        kind = int(name) % 5
        if kind == 4 and name not in self._asked:
            self._asked.add(name)
            self.log.append(("undecided", name))
            return None, False
        if kind == 0 or name in self._loaded:
            return 0, False
        block = 64
        tokens = (request.num_tokens - 1 - num_computed_tokens) // block * block
        if tokens <= 0:
            return 0, False
        return tokens, kind >= 2

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        if num_external_tokens == 0:
            return
        name = request.request_id
        self._loaded.add(name)
        is_async = int(name) % 5 >= 2
        if is_async:
            self._loading[name] = 1 + int(name) % 3
        self.log.append(
            ("async loads" if is_async else "loads", name, num_external_tokens)
            + blocks.get_block_ids()
        )

    def request_finished_all_groups(self, request: Any, block_ids: Any) -> Any:
        name = request.request_id
        self.log.append(("finished", name, block_ids))
        if int(name) % 3 or name in self._loading:
            return False, None
        self._sending[name] = 2
        self.log.append(("delayed frees", name))
        return True, None

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        return KVConnectorMetadata()

    def step(self) -> tuple[set[str], set[str]]:
        """A step of the workers: who has received, and who has been sent."""
        done = []
        for waiting in (self._loading, self._sending):
            for name in waiting:
                waiting[name] -= 1
            done.append({name for name, steps in waiting.items() if steps == 0})
            for name in done[-1]:
                del waiting[name]
        return done[0], done[1]

    # The workers' side.

    def start_load_kv(self, *args: Any, **kwargs: Any) -> None: ...
    def wait_for_layer_load(self, *args: Any, **kwargs: Any) -> None: ...
    def save_kv_layer(self, *args: Any, **kwargs: Any) -> None: ...
    def wait_for_save(self) -> None: ...
