"""Upload an exported folder to a model hub."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from huggingface_hub import HfApi
from huggingface_hub.errors import HFValidationError, LocalTokenNotFoundError

from ..errors import FttuiError
from ..model.progress import Progress


def push(folder: Path, repo: str, *, public: bool, progress: Progress) -> str:
    """Upload a folder to a model repository, which is created if it does not exist.

    An existing repository keeps its visibility. The endpoint and the token are those of
    huggingface_hub: `HF_ENDPOINT`, and `HF_TOKEN` or a login with `hf auth login`.

    Args:
        folder: The exported folder.
        repo: `NAME` or `OWNER/NAME`.
        public: Whether a new repository is public; otherwise it is private.
        progress: Called with (label, done, total).

    Returns:
        The address of the repository.

    Raises:
        FttuiError: The hub refuses or cannot be reached. The folder stays, and the text has the
            command that uploads it again.
    """
    api = HfApi()
    progress(f"uploading to {api.endpoint}", 0, 1)
    try:
        created = api.create_repo(repo, private=not public, exist_ok=True)
        api.upload_folder(
            repo_id=created.repo_id,
            folder_path=str(folder),
            commit_message="Upload an export of fttui",
        )
    except _errors() as error:
        why = str(error).strip().splitlines() or [type(error).__name__]
        raise _failed(folder, repo, why[0]) from None
    progress("uploading", 1, 1)
    return str(created)


def _errors() -> tuple[type[Exception], ...]:
    """Return the errors of an upload; releases of huggingface_hub differ in their HTTP library."""
    libraries = [import_module(one) for one in ("httpx2", "httpx") if find_spec(one) is not None]
    errors = [library.HTTPError for library in libraries]
    return (*errors, HFValidationError, LocalTokenNotFoundError, OSError)


def _failed(folder: Path, repo: str, why: str) -> FttuiError:
    return FttuiError(
        f"the export is complete in {folder}, but was not uploaded to {repo}: {why}; log in with "
        f"`hf auth login` if you have not, then run: hf upload {repo} {folder}"
    )
