"""The cache folder, and a check that its files belong to the user."""

import os
import stat
import sys
from pathlib import Path

import platformdirs

from tercet.config import UserError


class UntrustedFile(Exception):
    """A file cannot be trusted: it is a symbolic link, or another user owns it or can change it.

    The message contains the file, the reason and the remedy.
    """


def cache_dir() -> Path:
    """Return TERCET_CACHE if it is set, else the user's cache folder.

    Raises:
        UserError: If neither exists, since the user has no home folder, as in some containers.
    """
    if folder := os.environ.get("TERCET_CACHE"):
        return Path(folder)
    try:
        path = Path(platformdirs.user_cache_dir("tercet"))
    except RuntimeError:  # no home folder; other versions return a path that begins with "~"
        path = Path()
    if not path.is_absolute():
        raise UserError("the user has no home folder for cached files; set TERCET_CACHE to a folder")
    return path


def check_owner(path: Path) -> None:
    """Check that only the user and root can change or replace a file or folder whose content is trusted, such as code.

    The path and the folders above it, up to the user's home, must not be links, must belong to the user or root, and
    must not be writable by others. Parent folders with the sticky bit, such as /tmp, may be writable, since users can
    only remove their own files there. On Windows, nothing is checked.

    Args:
        path: Path without links, as `Path.resolve` returns it.

    Raises:
        UntrustedFile: If one of these conditions is not met.
        OSError: If the path does not exist or cannot be accessed.
    """
    if sys.platform == "win32":  # access lists protect a user's profile; modes do not apply
        return
    home = Path(os.path.expanduser("~")).resolve()  # a user without a home: check up to the root
    for place in (path, *path.parents):
        status = place.lstat()
        if stat.S_ISLNK(status.st_mode):
            raise UntrustedFile(f"{place} is a symbolic link; remove it")
        if status.st_uid not in (0, os.geteuid()):
            remedy = "remove it, or " if place == path else ""
            raise UntrustedFile(f"{place} belongs to another user; {remedy}set TERCET_CACHE to your own folder")
        if _others_write(status) and not (place != path and status.st_mode & stat.S_ISVTX):
            raise UntrustedFile(
                f"other users can write to {place}; `chmod go-w` it, or set TERCET_CACHE to another folder"
            )
        if place == home:
            return


def _others_write(status: os.stat_result) -> bool:
    """Return whether the mode allows other users to write.

    The user's private group does not count as other users: it is the user's primary group, has the user's name, and has
    no other member. Most systems create such a group for each user.
    """
    import grp
    import pwd

    if not status.st_mode & stat.S_IWGRP:
        return bool(status.st_mode & stat.S_IWOTH)
    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(status.st_gid)
    except KeyError:  # the user or group has no name
        return True
    is_private = group.gr_gid == user.pw_gid and group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}
    return not is_private or bool(status.st_mode & stat.S_IWOTH)
