"""Every product of the catalogue, one test each."""

import time
import unittest

from shop.catalogue import products
from shop.pricing import formatted, parsed, with_tax


class Catalogue(unittest.TestCase):
    pass


def check(name, net):
    def test(self):
        gross = with_tax(net, 190)
        self.assertGreater(gross, net, name)
        self.assertEqual(parsed(formatted(gross)), gross, name)
        # As long as looking a product up takes.
        time.sleep(0.002)

    return test


for number, name, net in products():
    setattr(Catalogue, f"test_product_{number:05d}", check(name, net))
