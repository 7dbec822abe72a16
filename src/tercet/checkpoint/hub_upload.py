"""Upload of a model folder to the Hugging Face Hub, in one commit that also removes the files of the previous model."""

from pathlib import Path
from typing import TYPE_CHECKING

from tercet.checkpoint.hub import HubModel, hub_endpoint, report_errors
from tercet.checkpoint.model_files import MODEL_FILES
from tercet.config import UserError
from tercet.offline import offline_variable

if TYPE_CHECKING:
    from huggingface_hub import HfApi

OWN_FILES = MODEL_FILES - {"README.md"}  # a repository with only a README.md contains no model


def check_upload(model: HubModel, *, force: bool) -> str | None:
    """Check that a model can be uploaded, and return the commit that it will follow; None for a new repository.

    Args:
        model: Where to upload to.
        force: If True, the repository may already contain a model.

    Raises:
        UserError: If downloads are disabled, there is no token, or the repository contains a model.
    """
    if (variable := offline_variable()) is not None:
        raise UserError(f"{model}: {variable} is set, so nothing is uploaded; unset it, or choose a folder")
    if model.revision is not None:
        raise UserError(f"{model}: a model is uploaded to the main branch; leave out @{model.revision}")
    with report_errors(model):
        from huggingface_hub import get_token
        from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

        if get_token() is None:
            raise UserError(f"{model}: an upload needs a token; run `hf auth login`, or set HF_TOKEN")
        try:
            info = _api().model_info(model.repo)
        except GatedRepoError:
            raise
        except RepositoryNotFoundError:
            return None
    files = sorted(file.rfilename for file in info.siblings or () if file.rfilename in OWN_FILES)
    if files and not force:
        raise UserError(f"{model} already contains a model ({files[0]}); pass --force to replace it, or another name")
    return info.sha


def upload_model(folder: Path, model: HubModel, *, after: str | None) -> None:
    """Upload a model folder in one commit, which also removes the files of the previous model.

    Args:
        folder: Folder of the model in any format.
        model: Where to upload to. A new repository has the visibility that the account has set, usually public.
        after: Result of `check_upload`. If the repository has changed since then, nothing is uploaded.

    Raises:
        UserError: If the hub rejects the upload, or it fails.
    """
    with report_errors(model):
        api = _api()
        if after is None:
            after = api.model_info(api.create_repo(model.repo).repo_id).sha
        api.upload_folder(
            repo_id=model.repo, folder_path=folder, commit_message="Upload a model with Tercet", parent_commit=after,
            delete_patterns=[*OWN_FILES, "[0-9]_Pooling/*", "[0-9]_Dense/*", "[0-9]_Normalize/*"],
        )  # fmt: skip


def _api() -> "HfApi":
    from huggingface_hub import HfApi

    return HfApi(endpoint=hub_endpoint(), library_name="tercet")
