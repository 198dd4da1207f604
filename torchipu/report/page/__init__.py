"""``report.html``: all of a report in one file that opens from disk, without a network."""

from torchipu.report.page.page import page_of
from torchipu.report.page.payload import Compared, File

__all__ = ["Compared", "File", "page_of"]
