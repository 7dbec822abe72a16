"""Atomic writes of files and folders, manifests of file hashes, JSON with a checksum, and locks."""

from typing import TYPE_CHECKING

from tercet.lazy_exports import export_lazily

if TYPE_CHECKING:
    from tercet.storage.atomic import replace_folder as replace_folder
    from tercet.storage.atomic import report_write_errors as report_write_errors
    from tercet.storage.atomic import write_atomically as write_atomically
    from tercet.storage.atomic import write_failure as write_failure
    from tercet.storage.folder_lock import FolderInUse as FolderInUse
    from tercet.storage.folder_lock import lock_file as lock_file
    from tercet.storage.folder_lock import lock_folder as lock_folder
    from tercet.storage.manifest import MANIFEST as MANIFEST
    from tercet.storage.manifest import FileHash as FileHash
    from tercet.storage.manifest import Manifest as Manifest
    from tercet.storage.manifest import read_manifest as read_manifest
    from tercet.storage.manifest import read_whole as read_whole
    from tercet.storage.manifest import write_folder as write_folder
    from tercet.storage.output_file import check_output_file as check_output_file
    from tercet.storage.output_file import check_output_folder as check_output_folder
    from tercet.storage.sealed_json import DamagedFile as DamagedFile
    from tercet.storage.sealed_json import read_sealed_json as read_sealed_json
    from tercet.storage.sealed_json import write_sealed_json as write_sealed_json
else:
    export_lazily(__name__)
