"""``python -m torchipu`` is the command ``torchipu``."""

from torchipu.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
