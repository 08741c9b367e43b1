"""The rules of the table; `bench/run --smoke` tries them before anything else."""

import unittest

from table import Line, markdown_line, number


class TheTable(unittest.TestCase):
    def check(self, met, toolway, **line):
        self.assertIs(Line("row", "what", toolway, "ms", **line).met(), met)

    def test_a_bound_from_above_is_met_up_to_it(self):
        self.check(True, 20.0, other=10.0, most=2.0)
        self.check(False, 20.1, other=10.0, most=2.0)

    def test_a_bound_from_below_is_met_down_to_it(self):
        self.check(True, 5.5, other=10.0, least=0.55)
        self.check(False, 5.4, other=10.0, least=0.55)

    def test_an_absolute_bound_is_on_what_toolway_has(self):
        self.check(True, 19.0, other=1.0, most=20, absolute=True)
        self.check(False, 21.0, other=100.0, most=20, absolute=True)

    def test_nothing_required_is_neither_met_nor_not(self):
        self.check(None, 5.0, other=10.0)

    def test_without_anything_to_hold_it_against_a_ratio_is_not_met(self):
        self.check(None, 5.0, other=None, most=2.0)
        self.check(None, 5.0, other=0.0, most=2.0)

    def test_a_line_says_what_is_required_and_what_was_found(self):
        line = Line("row", "CPU", 30.0, "ms", 10.0, most=2.0)
        self.assertEqual(markdown_line(line), "| CPU | ≤ 2 × nginx | 30.0 ms | nginx 10.0 ms | 3.00 | **no** |")

    def test_figures_have_the_digits_that_count(self):
        for value, text in [(0.123, "0.12"), (12.34, "12.3"), (123.4, "123"), (1234.5, "1,234"), (61_940, "61,900")]:
            self.assertEqual(number(value), text)
