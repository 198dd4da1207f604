"""What holds for all tests: the IR is verified after every pass, also in the processes that tests start."""

import os

from torchipu.compiler import VERIFY_VARIABLE

os.environ[VERIFY_VARIABLE] = "1"
