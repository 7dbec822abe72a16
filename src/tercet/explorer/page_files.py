"""The files of the explorer's page."""

from tercet.web.page_files import read_page_files


def page_files() -> dict[str, str]:
    """The text of each file, by its name."""
    return read_page_files("tercet.explorer")
