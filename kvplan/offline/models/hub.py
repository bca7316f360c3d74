"""Models on the Hugging Face Hub: their config and index files, never their weights.

Through ``huggingface_hub``, so its cache, its token, ``HF_ENDPOINT`` and ``HF_HUB_OFFLINE`` hold.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvplan.offline.models.errors import ModelError

_PART = r"[A-Za-z0-9_](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?"
_HUB_ID = re.compile(rf"({_PART}/{_PART})(?:@([^\s@]+))?")

#: Endings of files; ``folder/config.json`` is no Hub id.
_FILE_SUFFIXES = (".json", ".gguf", ".safetensors")


@dataclass(frozen=True)
class HubModel:
    """A model on the Hub.

    Attributes:
        repo_id: ``org/name``.
        revision: A branch, tag or commit; None is the repository's main branch.
    """

    repo_id: str
    revision: str | None = None

    def __str__(self) -> str:
        return self.repo_id if self.revision is None else f"{self.repo_id}@{self.revision}"

    def download(self, filename: str, max_bytes: int) -> Path:
        """A file of the model in the local cache, fetched if it is not there.

        Args:
            filename: Its name in the repository.
            max_bytes: A larger file is refused before it is fetched.

        Raises:
            FileNotOnHub: If the model has no such file.
            ModelError: If it cannot be had; the message says why and what would help.
        """
        hub = self._library()
        with self._one_clear_error(filename):
            if self.cached(filename) is None and not hub.constants.HF_HUB_OFFLINE:
                size = self._metadata(filename).size
                if size is not None and size > max_bytes:
                    raise ModelError(
                        f"{filename} of {self} on the Hub is {size:,} bytes; at most "
                        f"{max_bytes:,} bytes are read, so this is some other file"
                    )
            path = hub.hf_hub_download(
                self.repo_id, filename, revision=self.revision, library_name="kvplan"
            )
        return Path(path)

    def download_if_there(self, filename: str) -> Path | None:
        """The same for a small file that a model need not have; offline, only the cache is asked.

        The cache also remembers that a file is not there.
        """
        hub = self._library()
        known = hub.try_to_load_from_cache(self.repo_id, filename, revision=self.revision)
        if known is not None or hub.constants.HF_HUB_OFFLINE:
            return Path(known) if isinstance(known, str) else None
        try:
            with self._one_clear_error(filename):
                path = hub.hf_hub_download(
                    self.repo_id, filename, revision=self.revision, library_name="kvplan"
                )
        except FileNotOnHub:
            return None
        return Path(path)

    def cached(self, filename: str) -> Path | None:
        """The file where the local cache has it."""
        path = self._library().try_to_load_from_cache(
            self.repo_id, filename, revision=self.revision
        )
        return Path(path) if isinstance(path, str) else None

    def tensors(self, filename: str) -> list[tuple[str, list[int], str]]:
        """Name, shape and dtype of a safetensors file's tensors; only its header is fetched.

        Raises:
            FileNotOnHub: If the model has no such file.
            ModelError: If its header cannot be had.
        """
        hub = self._library()
        with self._one_clear_error(filename):
            header = hub.HfApi(library_name="kvplan").parse_safetensors_file_metadata(
                self.repo_id, filename, revision=self.revision
            )
        return [(name, list(t.shape), t.dtype) for name, t in header.tensors.items()]

    def _metadata(self, filename: str) -> Any:
        hub = self._library()
        url = hub.hf_hub_url(self.repo_id, filename, revision=self.revision)
        return hub.get_hf_file_metadata(url, library_name="kvplan")

    def _library(self) -> Any:
        try:
            import huggingface_hub
        except ImportError:
            raise ModelError(
                f"no file or directory {str(self)!r} here; to look for it on the Hub, kvplan needs "
                "the package huggingface_hub: pip install huggingface_hub"
            ) from None
        return huggingface_hub

    @contextmanager
    def _one_clear_error(self, filename: str) -> Iterator[None]:
        from huggingface_hub import constants, errors

        where = f"on the Hub ({constants.ENDPOINT})"
        try:
            yield
        except errors.GatedRepoError:
            raise ModelError(
                f"{self} is gated {where}: accept its terms on its page there, then log in with "
                "'hf auth login' or set HF_TOKEN"
            ) from None
        except errors.RepositoryNotFoundError:
            raise ModelError(
                f"there is no model {self.repo_id!r} {where} that your token may see, and no file "
                "or directory of that name here; a private model needs 'hf auth login' or HF_TOKEN"
            ) from None
        except errors.RevisionNotFoundError:
            raise ModelError(
                f"{self.repo_id} {where} has no revision {self.revision!r}; give a branch, a tag "
                "or a commit"
            ) from None
        except errors.LocalEntryNotFoundError as error:
            raise ModelError(self._not_cached(filename, error, where)) from None
        except errors.EntryNotFoundError:
            raise FileNotOnHub(f"{self} {where} has no {filename}") from None
        except errors.OfflineModeIsEnabled as error:
            raise ModelError(self._not_cached(filename, error, where)) from None
        except errors.HFValidationError as error:
            raise ModelError(f"{str(self)!r} is no Hub id: {error}") from None
        except (errors.SafetensorsParsingError, errors.NotASafetensorsRepoError) as error:
            raise ModelError(f"{filename} of {self} {where} cannot be read: {error}") from None
        except _connection_errors() as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            raise ModelError(f"cannot read {filename} of {self} {where}: {reason}") from None

    def _not_cached(self, filename: str, error: Exception, where: str) -> str:
        from huggingface_hub import constants

        if constants.HF_HUB_OFFLINE:
            return (
                f"{filename} of {self} is not in the cache ({constants.HF_HUB_CACHE}), and "
                "HF_HUB_OFFLINE forbids to fetch it"
            )
        cause = error.__cause__
        reason = f": {' '.join(str(cause).split())}" if cause is not None else ""
        return (
            f"cannot reach {self} {where}, and {filename} is not in the cache "
            f"({constants.HF_HUB_CACHE}){reason}"
        )


class FileNotOnHub(ModelError):
    """The repository is there, the file is not."""


def hub_model(name: str) -> HubModel | None:
    """The Hub model that a name can mean: ``org/name`` or ``org/name@revision``, else None.

    A file or directory of that name comes first; ask for those before.
    """
    match = _HUB_ID.fullmatch(name)
    if match is None or name.endswith(_FILE_SUFFIXES):
        return None
    return HubModel(match.group(1), match.group(2))


def _connection_errors() -> tuple[type[BaseException], ...]:
    """What the client raises when a connection or a server fails, by its version."""
    kinds: list[type[BaseException]] = [OSError]
    for module in ("httpx2", "httpx", "requests"):
        try:
            kinds.append(__import__(module).HTTPError)
        except (ImportError, AttributeError):
            continue
    return tuple(kinds)
