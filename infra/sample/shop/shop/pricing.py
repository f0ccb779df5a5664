"""Prices in whole cents."""


def discounted(total_cents, percent):
    """The price after a discount, rounded half up to a whole cent."""
    return total_cents * (100 - percent) // 100


def with_tax(net_cents, per_mille):
    """The price with tax, rounded half up to a whole cent."""
    return (net_cents * (1000 + per_mille) + 500) // 1000


def formatted(cents):
    """`1995` as `19.95`."""
    return f"{cents // 100}.{cents % 100:02d}"


def parsed(text):
    """`19.95` as `1995`."""
    whole, _, fraction = text.partition(".")
    return int(whole) * 100 + int(fraction.ljust(2, "0"))
