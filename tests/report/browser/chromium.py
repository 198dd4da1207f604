"""Where Chromium is."""

from __future__ import annotations

import shutil
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find_chromium() -> str | None:
    """Return the path of the system's Chromium, or else of playwright's own; None where there is none."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return None
    for name in NAMES:
        if (found := shutil.which(name)) is not None:
            return found
    with sync_playwright() as playwright:
        own = playwright.chromium.executable_path
    return own if Path(own).is_file() else None
