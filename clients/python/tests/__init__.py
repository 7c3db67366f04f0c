"""Tests of the client. They break things on purpose, so its log is not shown."""

import logging

logging.getLogger("tenure").addHandler(logging.NullHandler())
