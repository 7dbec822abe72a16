"""Where Tercet keeps what can be made or downloaded again, and whether what lies there is the user's own."""

import os
import stat
import sys
from pathlib import Path

import platformdirs


class UntrustedFile(Exception):
    """Someone else owns a file or can change it. The words: which, why, and the remedy."""


def cache_dir() -> Path:
    """TERCET_CACHE, else the user's cache folder."""
    return Path(os.environ.get("TERCET_CACHE") or platformdirs.user_cache_dir("tercet"))


def check_owner(path: Path) -> None:
    """For a file or folder whose content is believed, such as code that is run: no one but the user and root can change
    it, or put another in its place.

    So it is no link; it and the folders above it, up to the user's home, are the user's or root's; and no one else may
    write there, but into those folders where all may write and each may remove only what is his own (such as /tmp).

    Args:
        path: in a folder without links, as `Path.resolve` gives it.

    Raises:
        UntrustedFile: where it is not so.
        OSError: where it is not there, or cannot be looked at.
    """
    if (
        sys.platform == "win32"
    ):  # a profile's folders are their user's by its access lists, of which a mode says nothing
        return
    home = Path(os.path.expanduser("~")).resolve()  # where nobody knows one, up to the root
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
    """Whether the mode lets others write. A group that is the user's alone (called as he is, as most systems make one
    for each) is not others.
    """
    import grp
    import pwd

    if not status.st_mode & stat.S_IWGRP:
        return bool(status.st_mode & stat.S_IWOTH)
    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(status.st_gid)
    except KeyError:  # one that the system has no name for
        return True
    is_private = group.gr_gid == user.pw_gid and group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}
    return not is_private or bool(status.st_mode & stat.S_IWOTH)
