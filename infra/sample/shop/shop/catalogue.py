"""The catalogue: products by number, with net prices in cents."""

NAMES = ("anchor", "balance", "crown", "detent", "escape wheel", "fusee", "gear", "hairspring", "impulse pin", "jewel",
         "lever", "mainspring", "pallet", "ratchet", "stem", "tourbillon")


def products(count=3000):
    """`count` products, always the same ones."""
    for number in range(1, count + 1):
        yield number, f"{NAMES[number % len(NAMES)]} no. {number}", 500 + number * 7919 % 99500
