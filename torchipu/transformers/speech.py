"""The logger of this package: `logger.info` tells a layout as optimum-graphcore did."""

import logging

logger = logging.getLogger("torchipu.transformers")
