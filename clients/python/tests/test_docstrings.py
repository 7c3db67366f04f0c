"""The examples in the documentation of the client, run against a real server."""

from __future__ import annotations

import doctest
import unittest

import tenure
from tenure import client, database, direct, election, fencing, records, worker

from .support import Cluster


class Examples(unittest.TestCase):
    def test_examples_do_what_they_show(self) -> None:
        cluster = Cluster()
        self.addCleanup(cluster.stop)
        names = {name: getattr(tenure, name) for name in tenure.__all__}
        with tenure.Client(cluster.urls) as connected:
            names.update(url=cluster.urls[0], client=connected)
            finder = doctest.DocTestFinder()
            ran = 0
            for module in (client, database, direct, election, fencing, records, worker):
                for example in finder.find(module, globs={**vars(module), **names}):
                    result = doctest.DocTestRunner().run(example)
                    self.assertEqual(result.failed, 0, example.name)
                    ran += result.attempted
        self.assertGreater(ran, 15)
