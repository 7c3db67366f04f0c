"""Tests of the client. They break things on purpose, so what it logs then is not shown."""

import logging

logging.getLogger("tenure").addHandler(logging.NullHandler())
