"""Files of the explorer's page."""

from collections.abc import Mapping

from tercet.web.page_files import read_page_files


def page_files() -> Mapping[str, str]:
    """Return the text of each file by name."""
    return read_page_files("tercet.explorer")
