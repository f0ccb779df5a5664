"""How the commands speak: progress in plain sentences, a failure in one."""

import signal
import sys

_ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Problem(Exception):
    """Something that the person at the keyboard can mend; the text says what is wrong and what to do."""


def say(text):
    """Print one line of progress at once, also into a pipe."""
    print(text, flush=True)


def command(main):
    """Run a command's `main`. A Problem becomes a sentence and exit 1. When told to end, every `finally` still runs,
    undisturbed by a second Ctrl-C."""
    for number in _ENDINGS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _end)
    try:
        sys.exit(main())
    except Problem as problem:
        sys.exit(f"{sys.argv[0]}: {problem}")
    except OSError as error:
        sys.exit(f"{sys.argv[0]}: {error}")


def _end(number, _frame):
    for other in _ENDINGS:
        signal.signal(other, signal.SIG_IGN)
    sys.exit(128 + number)
