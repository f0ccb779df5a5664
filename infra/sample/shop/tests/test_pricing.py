"""The arithmetic of prices."""

import unittest

from shop.pricing import discounted, formatted, parsed, with_tax


class Pricing(unittest.TestCase):
    def test_discount_of_nothing(self):
        self.assertEqual(discounted(1995, 0), 1995)

    def test_discount_rounds_half_up(self):
        self.assertEqual(discounted(1995, 15), 1696)  # 1695.75

    def test_tax_rounds_half_up(self):
        self.assertEqual(with_tax(1995, 190), 2374)  # 2374.05

    def test_formatted_and_back(self):
        self.assertEqual(parsed(formatted(1995)), 1995)
